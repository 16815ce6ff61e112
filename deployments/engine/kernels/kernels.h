// The kernels' interface, free of torch: plain pointers, row-major tensors, sizes in elements.
#pragma once

#include "simd.h"

namespace servegraph {

constexpr int64_t kPanel = kTileVectors * kLanes;

inline int64_t num_panels(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

// Weights [outputs, inputs] rearranged into panels of kPanel outputs, [panel][input unit][output][step], the
// last one padded with zeros. `inputs` must be a multiple of the type's step. W may be int8.
template <class T, class W>
void pack_weights(const W* weights, int64_t outputs, int64_t inputs, W* packed);

// out[rows, outputs] = x[rows, inputs] * weights^T * scales + bias; `scales` [outputs] and `bias` may be null.
template <class T, class W, class Out>
void linear(const T* x, int64_t rows, int64_t inputs, const W* packed, const float* scales, const T* bias,
            int64_t outputs, Out* out);

struct AttentionShape {
  int64_t tokens, sequences, heads, kv_heads, head_dim;
  int64_t block_size, table_width;
  int64_t query_row_stride, key_row_stride, value_row_stride;  // elements from token to token
};

struct AttentionOptions {
  float scale, softcap;  // softcap 0: none
  int64_t window;        // 0: none
};

// One layer's paged attention. Keys lie in the cache as [block][kv head][16 tokens][dim unit][token][step], values
// as [block][kv head][token unit][dim][step], so that both products read whole vectors.
template <class T>
void paged_attention(const AttentionShape& shape, const AttentionOptions& options, const T* query, const T* key,
                     const T* value, T* key_cache, T* value_cache, const int64_t* slots, const int64_t* query_starts,
                     const int64_t* context_lens, const int64_t* block_tables, T* out);

}  // namespace servegraph
