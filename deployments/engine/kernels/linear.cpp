// Matrix products with packed weights. At few rows the weights' bytes are the cost, and a panel is read once
// for all rows; panels are handed to whichever thread is free, since other processes share the cores.
#include <type_traits>
#include <vector>

#include "kernels.h"

namespace servegraph {

template <class T, class W>
void pack_weights(const W* weights, int64_t outputs, int64_t inputs, W* packed) {
  constexpr int64_t kStep = Dot<T>::kStep;
#pragma omp parallel for
  for (int64_t panel = 0; panel < num_panels(outputs); ++panel) {
    W* to = packed + panel * kPanel * inputs;
    for (int64_t column = 0; column < kPanel; ++column) {
      const int64_t output = panel * kPanel + column;
      for (int64_t input = 0; input < inputs; ++input) {
        const int64_t index = (input / kStep * kPanel + column) * kStep + input % kStep;
        to[index] = output < outputs ? weights[output * inputs + input] : W{};
      }
    }
  }
}

namespace {

// One panel's columns of the output, for all rows.
template <class T, class W, class Out>
void multiply_panel(const T* x, int64_t rows, int64_t inputs, const W* panel, const float* scales, const T* bias,
                    int64_t columns, int64_t out_stride, Out* out) {
  constexpr int64_t kStep = Dot<T>::kStep;
  for_row_tiles(rows, [&](int64_t first, auto count) {
    constexpr int kRows = decltype(count)::value;
    F32x16 sums[kRows][kTileVectors] = {};
    multiply_add<T, W, kRows, kTileVectors>(x + first * inputs, inputs, panel, inputs / kStep, kPanel * kStep,
                                            kLanes * kStep, sums);
    for (int v = 0; v < kTileVectors; ++v) {
      const int width = int(columns - v * kLanes < kLanes ? columns - v * kLanes : kLanes);
      if (width <= 0) break;
      F32x16 factor = broadcast(1.0f), offset = {};
      for (int lane = 0; lane < width; ++lane) {
        if (scales) factor[lane] = scales[v * kLanes + lane];
        if (bias) offset[lane] = to_float(bias[v * kLanes + lane]);
      }
      for (int r = 0; r < kRows; ++r) {
        const F32x16 result = scales ? sums[r][v] * factor + offset : sums[r][v] + offset;
        Out* to = out + (first + r) * out_stride + v * kLanes;
        if (width == kLanes) {
          store_lanes(to, result);
        } else {
          store_some(to, result, width);
        }
      }
    }
  });
}

template <class T>
void widen_panel(const int8_t* panel, int64_t count, T* to) {
  for (int64_t i = 0; i < count; i += kLanes * Dot<T>::kStep) {
    const typename Dot<T>::Unit unit = Dot<T>::unit(panel + i);
    if constexpr (sizeof(unit) == 64) {
      std::memcpy(to + i, &unit, sizeof(unit));
    } else {
      for (int64_t j = i; j < i + kLanes * Dot<T>::kStep; ++j) to[j] = to_bfloat16(float(panel[j]));
    }
  }
}

}  // namespace

template <class T, class W, class Out>
void linear(const T* x, int64_t rows, int64_t inputs, const W* packed, const float* scales, const T* bias,
            int64_t outputs, Out* out) {
#pragma omp parallel
  {
    std::vector<T> wide;
#pragma omp for schedule(dynamic)
    for (int64_t panel = 0; panel < num_panels(outputs); ++panel) {
      const int64_t first = panel * kPanel;
      const W* weights = packed + first * inputs;
      const float* panel_scales = scales ? scales + first : nullptr;
      const T* panel_bias = bias ? bias + first : nullptr;
      if constexpr (!std::is_same_v<T, W>) {
        if (rows > kMaxRows) {  // widen once rather than for each tile of rows
          wide.resize(kPanel * inputs);
          widen_panel(weights, kPanel * inputs, wide.data());
          multiply_panel(x, rows, inputs, wide.data(), panel_scales, panel_bias, outputs - first, outputs,
                         out + first);
          continue;
        }
      }
      multiply_panel(x, rows, inputs, weights, panel_scales, panel_bias, outputs - first, outputs, out + first);
    }
  }
}

template void pack_weights<float, float>(const float*, int64_t, int64_t, float*);
template void pack_weights<float, int8_t>(const int8_t*, int64_t, int64_t, int8_t*);
template void pack_weights<BFloat16, BFloat16>(const BFloat16*, int64_t, int64_t, BFloat16*);
template void pack_weights<BFloat16, int8_t>(const int8_t*, int64_t, int64_t, int8_t*);

#define SERVEGRAPH_LINEAR(T, W, OUT)                                                                         \
  template void linear<T, W, OUT>(const T*, int64_t, int64_t, const W*, const float*, const T*, int64_t, OUT*);
SERVEGRAPH_LINEAR(float, float, float)
SERVEGRAPH_LINEAR(float, int8_t, float)
SERVEGRAPH_LINEAR(BFloat16, BFloat16, BFloat16)
SERVEGRAPH_LINEAR(BFloat16, BFloat16, float)
SERVEGRAPH_LINEAR(BFloat16, int8_t, BFloat16)
SERVEGRAPH_LINEAR(BFloat16, int8_t, float)

}  // namespace servegraph
