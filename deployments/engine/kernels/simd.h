// Vectors of 16 lanes in the compiler's portable vector types, and what the kernels do with them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace servegraph {

constexpr int kLanes = 16;

typedef float F32x16 __attribute__((vector_size(64)));
typedef int32_t I32x16 __attribute__((vector_size(64)));
typedef int8_t I8x16 __attribute__((vector_size(16)));
typedef int16_t I16x16 __attribute__((vector_size(32)));

struct BFloat16 {
  uint16_t bits;
};

template <class V>
inline V load(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}

template <class V>
inline void store(void* to, V value) {
  std::memcpy(to, &value, sizeof(V));
}

inline F32x16 broadcast(float value) { return F32x16{} + value; }

inline F32x16 maximum(F32x16 a, F32x16 b) { return a > b ? a : b; }

inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) {
  uint32_t bits = uint32_t(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

// Rounds to the nearest even; a NaN stays one.
inline BFloat16 to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return {0x7fc0};
  return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

inline void store_lanes(float* to, F32x16 values) { store(to, values); }
inline void store_lanes(BFloat16* to, F32x16 values) {
#if defined(__AVX512BF16__)
  __m256bh packed = _mm512_cvtneps_pbh(__m512(values));
  std::memcpy(to, &packed, sizeof(packed));
#else
  for (int lane = 0; lane < kLanes; ++lane) to[lane] = to_bfloat16(values[lane]);
#endif
}

inline void store_some(float* to, F32x16 values, int count) { std::memcpy(to, &values, 4 * count); }
inline void store_some(BFloat16* to, F32x16 values, int count) {
  BFloat16 all[kLanes];
  store_lanes(all, values);
  std::memcpy(to, all, 2 * count);
}

inline float sum(F32x16 v) {
  float total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += v[lane];
  return total;
}

inline float largest(F32x16 v) {
  float best = v[0];
  for (int lane = 1; lane < kLanes; ++lane) best = v[lane] > best ? v[lane] : best;
  return best;
}

// e**x within 2 ulp for x <= 0 (Cephes' expf polynomial); below -87 it is 0.
inline F32x16 exponential(F32x16 x) {
  const F32x16 lowest = broadcast(-87.0f);
  const I32x16 underflow = x < lowest;
  x = maximum(x, lowest);
  const F32x16 shifter = broadcast(12582912.0f);  // 1.5 * 2**23: adding it rounds to an integer
  const F32x16 n = (x * 1.44269504088896341f + shifter) - shifter;
  const F32x16 r = x - n * 0.693359375f + n * 2.12194440e-4f;
  F32x16 p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const I32x16 exponent = (__builtin_convertvector(n, I32x16) + 127) << 23;
  F32x16 scale;
  std::memcpy(&scale, &exponent, sizeof(scale));
  return underflow ? F32x16{} : p * scale;
}

// How a type is multiplied: `kStep` neighbouring elements of the reduced dimension are one unit, so that
// a unit of 16 columns is one 16-lane vector (bfloat16 pairs: the layout of the processor's dot product).
template <class T>
struct Dot;

template <>
struct Dot<float> {
  static constexpr int kStep = 1;
  typedef F32x16 Unit;
  static Unit splat(const float* a) { return broadcast(*a); }
  static Unit unit(const float* b) { return load<F32x16>(b); }
  static Unit unit(const int8_t* b) { return __builtin_convertvector(load<I8x16>(b), F32x16); }
  static F32x16 add(F32x16 sum, Unit a, Unit b) { return sum + a * b; }
};

template <>
struct Dot<BFloat16> {
  static constexpr int kStep = 2;
#if defined(__AVX512BF16__)
  typedef __m512bh Unit;
  static Unit splat(const BFloat16* a) {
    int32_t pair;
    std::memcpy(&pair, a, 4);
    return (Unit)_mm512_set1_epi32(pair);
  }
  static Unit unit(const BFloat16* b) { return (Unit)_mm512_loadu_si512(b); }
  static Unit unit(const int8_t* b) {
    const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)b));
    const __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(b + 16)));
    return _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
  }
  static F32x16 add(F32x16 sum, Unit a, Unit b) { return F32x16(_mm512_dpbf16_ps(__m512(sum), a, b)); }
#else
  struct Unit {
    F32x16 even, odd;
  };
  static Unit split(I32x16 pairs) {
    const I32x16 even = pairs << 16, odd = pairs & int32_t(0xffff0000);
    return {load<F32x16>(&even), load<F32x16>(&odd)};
  }
  static Unit splat(const BFloat16* a) { return {broadcast(to_float(a[0])), broadcast(to_float(a[1]))}; }
  static Unit unit(const BFloat16* b) { return split(load<I32x16>(b)); }
  static Unit unit(const int8_t* b) {
    const I32x16 pairs = __builtin_convertvector(load<I16x16>(b), I32x16);
    return {__builtin_convertvector((pairs << 24) >> 24, F32x16), __builtin_convertvector(pairs >> 8, F32x16)};
  }
  static F32x16 add(F32x16 sum, Unit a, Unit b) { return sum + a.even * b.even + a.odd * b.odd; }
#endif
};

// Rows of a register tile, and its width in vectors: together they fill the registers.
#if defined(__AVX512F__)
constexpr int kMaxRows = 12, kTileVectors = 2;
#else
constexpr int kMaxRows = 6, kTileVectors = 1;
#endif

// sums[r][v] += sum over steps of a[r][step] * b[step][v]: `a` has rows `row_stride` elements apart, `b` has
// its steps `step_stride` and its vectors `vector_stride` elements apart.
template <class T, class W, int kRows, int kVectors>
inline void multiply_add(const T* a, int64_t row_stride, const W* b, int64_t steps, int64_t step_stride,
                         int64_t vector_stride, F32x16 (&sums)[kRows][kVectors]) {
  typedef Dot<T> D;
  for (int64_t step = 0; step < steps; ++step) {
    typename D::Unit units[kVectors];
    for (int v = 0; v < kVectors; ++v) units[v] = D::unit(b + step * step_stride + v * vector_stride);
    for (int r = 0; r < kRows; ++r) {
      const typename D::Unit left = D::splat(a + r * row_stride + step * D::kStep);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = D::add(sums[r][v], left, units[v]);
    }
  }
}

template <int kCount>
struct Constant {
  static constexpr int value = kCount;
};

// Calls `body` with `count` (1 to kMax) as a compile-time constant.
template <int kMax, class Body>
inline void with_constant(int count, const Body& body) {
  if constexpr (kMax > 1) {
    if (count < kMax) return with_constant<kMax - 1>(count, body);
  }
  body(Constant<kMax>{});
}

// Splits `total` rows into as few tiles of at most `kMaxRows` as possible, of nearly equal size.
template <class Body>
inline void for_row_tiles(int64_t total, const Body& body) {
  const int64_t tiles = (total + kMaxRows - 1) / kMaxRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t begin = total * tile / tiles, end = total * (tile + 1) / tiles;
    with_constant<kMaxRows>(int(end - begin), [&](auto rows) { body(begin, rows); });
  }
}

}  // namespace servegraph
