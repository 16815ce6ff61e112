// Attention over a paged cache, in one pass over the keys with a running softmax (Milakov and Gimelshein 2018;
// Dao et al. 2022). The query heads that share a key/value head are rows of one small matrix product. Long
// contexts are split among threads and their parts combined (flash decoding).
#include <omp.h>

#include <algorithm>
#include <vector>

#include "kernels.h"

namespace servegraph {
namespace {

constexpr int64_t kKeysPerTile = 128;
constexpr int64_t kUnitsPerTile = kKeysPerTile / kLanes;
constexpr int64_t kQueryRows = 48;
constexpr int64_t kKeysPerPart = 1024;
constexpr float kNone = -std::numeric_limits<float>::infinity();

// Some queries of one sequence, for one key/value head, against a range of its keys.
struct WorkItem {
  int64_t sequence, kv_head, first_query, num_queries, first_key, end_key;
  int64_t part, first_part, num_parts;  // of the keys; numbered through all items
};

template <class T>
struct Scratch {
  std::vector<T> query, weights;
  std::vector<float> scores, sums, maxima, totals;

  void resize(int64_t rows, int64_t dim) {
    query.resize(rows * dim);
    weights.resize(rows * kKeysPerTile);
    scores.resize(rows * kKeysPerTile);
    sums.assign(rows * dim, 0.0f);
    maxima.assign(rows, kNone);
    totals.assign(rows, 0.0f);
  }
};

template <class T>
struct Attention {
  static constexpr int64_t kStep = Dot<T>::kStep;

  const AttentionShape& shape;
  const AttentionOptions& options;
  const T *query, *key, *value;
  T *key_cache, *value_cache;
  const int64_t *slots, *query_starts, *context_lens, *block_tables;
  T* out;

  int64_t group() const { return shape.heads / shape.kv_heads; }
  int64_t max_rows() const { return std::max(kQueryRows, group()); }

  // Offset of 16 tokens of a head in the cache; the same for keys and values.
  int64_t unit_offset(int64_t block, int64_t kv_head, int64_t offset) const {
    return ((block * shape.kv_heads + kv_head) * shape.block_size + offset) * shape.head_dim;
  }

  void write(int64_t token) const {
    const int64_t block = slots[token] / shape.block_size, offset = slots[token] % shape.block_size;
    const int64_t lane = offset % kLanes, dim = shape.head_dim;
    // A pair of values is multiplied as one: behind the last token must not lie a stale NaN.
    const bool last = token + 1 == shape.tokens || slots[token + 1] != slots[token] + 1;
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      const T* new_key = key + token * shape.key_row_stride + head * dim;
      const T* new_value = value + token * shape.value_row_stride + head * dim;
      T* key_unit = key_cache + unit_offset(block, head, offset - lane);
      T* value_rows = value_cache + unit_offset(block, head, offset / kStep * kStep);
      for (int64_t d = 0; d < dim; d += kStep) {
        for (int64_t s = 0; s < kStep; ++s) key_unit[d * kLanes + lane * kStep + s] = new_key[d + s];
      }
      for (int64_t d = 0; d < dim; ++d) {
        value_rows[d * kStep + offset % kStep] = new_value[d];
        if (last && kStep == 2 && offset % 2 == 0) value_rows[d * kStep + 1] = T{};
      }
    }
  }

  void attend(const WorkItem& item, Scratch<T>& scratch, float* partial) const {
    const int64_t rows = item.num_queries * group(), dim = shape.head_dim;
    scratch.resize(rows, dim);
    gather_query(item, scratch.query.data());
    for (int64_t first = item.first_key; first < item.end_key; first += kKeysPerTile) {
      attend_tile(item, first, std::min(item.end_key, first + kKeysPerTile), rows, scratch);
    }
    for (int64_t row = 0; row < rows; ++row) {
      const float* sums = scratch.sums.data() + row * dim;
      if (item.num_parts == 1) {
        write_output(item, row, sums, scratch.totals[row]);
      } else {
        float* to = partial + (item.part * max_rows() + row) * (dim + 2);
        to[0] = scratch.maxima[row];
        to[1] = scratch.totals[row];
        std::copy(sums, sums + dim, to + 2);
      }
    }
  }

  // Combine the parts of the item that is the first of `num_parts`.
  void combine(const WorkItem& item, const float* partial) const {
    const int64_t dim = shape.head_dim, rows = item.num_queries * group();
    std::vector<float> sums(dim);
    for (int64_t row = 0; row < rows; ++row) {
      const auto part_of = [&](int64_t i) { return partial + ((item.part + i) * max_rows() + row) * (dim + 2); };
      float peak = kNone, total = 0;
      for (int64_t i = 0; i < item.num_parts; ++i) peak = std::max(peak, part_of(i)[0]);
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int64_t i = 0; i < item.num_parts; ++i) {
        const float* part = part_of(i);
        if (part[0] == kNone) continue;
        const float factor = std::exp(part[0] - peak);
        total += factor * part[1];
        for (int64_t d = 0; d < dim; ++d) sums[d] += factor * part[2 + d];
      }
      write_output(item, row, sums.data(), total);
    }
  }

 private:
  int64_t token_of(const WorkItem& item, int64_t row) const {
    return query_starts[item.sequence] + item.first_query + row / group();
  }

  int64_t position_of(const WorkItem& item, int64_t row) const {
    const int64_t num_queries = query_starts[item.sequence + 1] - query_starts[item.sequence];
    return context_lens[item.sequence] - num_queries + item.first_query + row / group();
  }

  void gather_query(const WorkItem& item, T* to) const {
    const int64_t dim = shape.head_dim;
    for (int64_t row = 0; row < item.num_queries * group(); ++row) {
      const int64_t head = item.kv_head * group() + row % group();
      std::memcpy(to + row * dim, query + token_of(item, row) * shape.query_row_stride + head * dim, dim * sizeof(T));
    }
  }

  void write_output(const WorkItem& item, int64_t row, const float* sums, float total) const {
    const int64_t dim = shape.head_dim, head = item.kv_head * group() + row % group();
    T* to = out + (token_of(item, row) * shape.heads + head) * dim;
    for (int64_t d = 0; d < dim; d += kLanes) store_lanes(to + d, load<F32x16>(sums + d) / total);
  }

  // The offsets in the cache of a tile's units of 16 keys.
  int64_t find_units(const WorkItem& item, int64_t first, int64_t end, int64_t (&units)[kUnitsPerTile]) const {
    const int64_t* table = block_tables + item.sequence * shape.table_width;
    const int64_t count = (end - first + kLanes - 1) / kLanes;
    for (int64_t unit = 0; unit < count; ++unit) {
      const int64_t position = first + unit * kLanes;
      units[unit] = unit_offset(table[position / shape.block_size], item.kv_head, position % shape.block_size);
    }
    return count;
  }

  // Blocks lie anywhere, so that the processor does not guess the next one.
  void prefetch(const T* cache, const int64_t* units, int64_t count) const {
    const int64_t line = 64 / sizeof(T), size = kLanes * shape.head_dim;
    for (int64_t unit = 0; unit < count; ++unit) {
      for (int64_t i = 0; i < size; i += line) __builtin_prefetch(cache + units[unit] + i, 0, 2);
    }
  }

  void attend_tile(const WorkItem& item, int64_t first, int64_t end, int64_t rows, Scratch<T>& scratch) const {
    int64_t units[kUnitsPerTile];
    const int64_t count = find_units(item, first, end, units);
    const bool memory_bound = rows <= kMaxRows;
    if (memory_bound) prefetch(value_cache, units, count);
    for_row_tiles(rows, [&](int64_t first_row, auto size) {
      score<decltype(size)::value>(scratch, first_row, units, count);
    });
    int64_t next[kUnitsPerTile];
    if (memory_bound && end < item.end_key) {
      prefetch(key_cache, next, find_units(item, end, std::min(item.end_key, end + kKeysPerTile), next));
    }
    for (int64_t row = 0; row < rows; ++row) weigh(scratch, row, position_of(item, row), first, count);
    for_row_tiles(rows, [&](int64_t first_row, auto size) {
      add_values<decltype(size)::value>(scratch, first_row, units, end - first);
    });
  }

  template <int kRows>
  void score(Scratch<T>& scratch, int64_t first_row, const int64_t* units, int64_t count) const {
    const int64_t dim = shape.head_dim;
    const T* rows = scratch.query.data() + first_row * dim;
    const auto scores_of = [&](int64_t unit, auto width) {
      constexpr int kVectors = decltype(width)::value;
      F32x16 sums[kRows][kVectors] = {};
      const int64_t stride = kVectors > 1 ? units[unit + 1] - units[unit] : 0;
      multiply_add<T, T, kRows, kVectors>(rows, dim, key_cache + units[unit], dim / kStep, kLanes * kStep, stride,
                                          sums);
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          store(&scratch.scores[(first_row + r) * kKeysPerTile + (unit + v) * kLanes], sums[r][v]);
        }
      }
    };
    int64_t unit = 0;
    for (; unit + kTileVectors <= count; unit += kTileVectors) scores_of(unit, Constant<kTileVectors>{});
    for (; unit < count; ++unit) scores_of(unit, Constant<1>{});
  }

  // Turns a row's scores into unnormalised weights, and rescales what was summed so far.
  void weigh(Scratch<T>& scratch, int64_t row, int64_t position, int64_t first, int64_t count) const {
    float* scores = scratch.scores.data() + row * kKeysPerTile;
    T* weights = scratch.weights.data() + row * kKeysPerTile;
    const I32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int64_t oldest = options.window ? position - options.window : -1;
    F32x16 peaks = broadcast(kNone);
    for (int64_t unit = 0; unit < count; ++unit) {
      F32x16 values = load<F32x16>(scores + unit * kLanes) * options.scale;
      if (options.softcap) values = soft_cap(values);
      const int64_t begin = first + unit * kLanes;
      if (begin + kLanes - 1 > position || begin <= oldest) {
        const I32x16 keys = lanes + int32_t(begin - position);  // relative: fits whatever the position
        const int32_t reach = options.window ? int32_t(-options.window) : std::numeric_limits<int32_t>::min();
        values = (keys <= 0) & (keys > reach) ? values : broadcast(kNone);
      }
      store(scores + unit * kLanes, values);
      peaks = maximum(peaks, values);
    }
    const float peak = std::max(scratch.maxima[row], largest(peaks));
    if (peak == kNone) {  // every key of the tile is hidden from this row
      std::fill(weights, weights + count * kLanes, T{});
      return;
    }
    F32x16 total = {};
    for (int64_t unit = 0; unit < count; ++unit) {
      const F32x16 values = exponential(load<F32x16>(scores + unit * kLanes) - peak);
      total += values;
      store_lanes(weights + unit * kLanes, values);
    }
    if (peak != scratch.maxima[row]) {
      const float factor = std::exp(scratch.maxima[row] - peak);
      scratch.maxima[row] = peak;
      scratch.totals[row] *= factor;
      float* sums = scratch.sums.data() + row * shape.head_dim;
      for (int64_t d = 0; d < shape.head_dim; ++d) sums[d] *= factor;
    }
    scratch.totals[row] += sum(total);
  }

  F32x16 soft_cap(F32x16 values) const {  // softcap * tanh(values / softcap)
    const F32x16 x = values / options.softcap;
    const F32x16 decay = exponential(-2.0f * maximum(x, -x));
    const F32x16 magnitude = (1.0f - decay) / (1.0f + decay) * options.softcap;
    return x < 0 ? -magnitude : magnitude;
  }

  template <int kRows>
  void add_values(Scratch<T>& scratch, int64_t first_row, const int64_t* units, int64_t num_keys) const {
    const int64_t dim = shape.head_dim;
    const T* weights = scratch.weights.data() + first_row * kKeysPerTile;
    const auto add_columns = [&](int64_t d, auto width) {
      constexpr int kVectors = decltype(width)::value;
      F32x16 sums[kRows][kVectors];
      float* totals = scratch.sums.data() + first_row * dim + d;
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sums[r][v] = load<F32x16>(totals + r * dim + v * kLanes);
      }
      for (int64_t unit = 0; unit * kLanes < num_keys; ++unit) {
        // Not beyond the last key: what lies there may be a stale NaN, and 0 times it a NaN again.
        const int64_t keys = std::min<int64_t>(kLanes, num_keys - unit * kLanes);
        multiply_add<T, T, kRows, kVectors>(weights + unit * kLanes, kKeysPerTile,
                                            value_cache + units[unit] + d * kStep, (keys + kStep - 1) / kStep,
                                            dim * kStep, kLanes * kStep, sums);
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) store(totals + r * dim + v * kLanes, sums[r][v]);
      }
    };
    constexpr int kWide = kRows * 4 <= kMaxRows * kTileVectors ? 4 : kTileVectors;
    int64_t d = 0;
    for (; d + kWide * kLanes <= dim; d += kWide * kLanes) add_columns(d, Constant<kWide>{});
    for (; d < dim; d += kLanes) add_columns(d, Constant<1>{});
  }
};

// The step's work, the largest items first.
std::vector<WorkItem> plan(const AttentionShape& shape, const AttentionOptions& options, const int64_t* query_starts,
                           const int64_t* context_lens) {
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t queries_per_item = std::max<int64_t>(1, kQueryRows / group);
  std::vector<WorkItem> items;
  for (int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    const int64_t num_queries = query_starts[sequence + 1] - query_starts[sequence];
    for (int64_t first = 0; first < num_queries; first += queries_per_item) {
      const int64_t count = std::min(queries_per_item, num_queries - first);
      const int64_t position = context_lens[sequence] - num_queries + first;
      const int64_t begin = options.window ? std::max<int64_t>(0, position - options.window + 1) / kLanes * kLanes : 0;
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        items.push_back({sequence, head, first, count, begin, position + count, 0, 0, 1});
      }
    }
  }
  return items;
}

// Cuts the key ranges of items where there are too few of them to keep every thread busy.
std::vector<WorkItem> split(std::vector<WorkItem> items, int64_t threads) {
  if (int64_t(items.size()) >= 4 * threads) return items;
  std::vector<WorkItem> parts;
  for (const WorkItem& item : items) {
    const int64_t keys = item.end_key - item.first_key;
    const int64_t count = std::max<int64_t>(1, std::min(4 * threads, keys / kKeysPerPart));
    const int64_t size = (keys / count + kKeysPerTile - 1) / kKeysPerTile * kKeysPerTile;
    const int64_t num_parts = (keys + size - 1) / size, base = int64_t(parts.size());
    for (int64_t part = 0; part < num_parts; ++part) {
      WorkItem cut = item;
      cut.first_key = item.first_key + part * size;
      cut.end_key = std::min(item.end_key, cut.first_key + size);
      cut.part = base + part;
      cut.first_part = base;
      cut.num_parts = num_parts;
      parts.push_back(cut);
    }
  }
  return parts;
}

}  // namespace

template <class T>
void paged_attention(const AttentionShape& shape, const AttentionOptions& options, const T* query, const T* key,
                     const T* value, T* key_cache, T* value_cache, const int64_t* slots, const int64_t* query_starts,
                     const int64_t* context_lens, const int64_t* block_tables, T* out) {
  const Attention<T> attention{shape,       options, query,        key,          value,        key_cache,
                               value_cache, slots,   query_starts, context_lens, block_tables, out};
  const std::vector<WorkItem> items = split(plan(shape, options, query_starts, context_lens), omp_get_max_threads());
  std::vector<float> partial;
  if (std::any_of(items.begin(), items.end(), [](const WorkItem& item) { return item.num_parts > 1; })) {
    partial.resize(items.size() * attention.max_rows() * (shape.head_dim + 2));
  }
#pragma omp parallel
  {
    thread_local Scratch<T> scratch;
#pragma omp for
    for (int64_t token = 0; token < shape.tokens; ++token) attention.write(token);
#pragma omp for schedule(dynamic)
    for (size_t index = 0; index < items.size(); ++index) attention.attend(items[index], scratch, partial.data());
    if (!partial.empty()) {
#pragma omp for schedule(dynamic)
      for (size_t index = 0; index < items.size(); ++index) {
        const WorkItem& item = items[index];
        if (item.num_parts > 1 && item.part == item.first_part) attention.combine(item, partial.data());
      }
    }
  }
}

#define SERVEGRAPH_ATTENTION(T)                                                                                  \
  template void paged_attention<T>(const AttentionShape&, const AttentionOptions&, const T*, const T*, const T*, \
                                   T*, T*, const int64_t*, const int64_t*, const int64_t*, const int64_t*, T*);
SERVEGRAPH_ATTENTION(float)
SERVEGRAPH_ATTENTION(BFloat16)

}  // namespace servegraph
