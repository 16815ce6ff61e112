// The kernels as operators of torch.
#include <ATen/ops/empty.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include "kernels.h"

namespace servegraph {
namespace {

using at::Tensor;

template <class T>
const T* read(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <class T>
T* written(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

template <class T>
const T* read(const std::optional<Tensor>& tensor) {
  return tensor ? read<T>(*tensor) : nullptr;
}

template <class Body>
void with_dtype(at::ScalarType dtype, const Body& body) {
  if (dtype == at::kFloat) {
    body(float{});
  } else {
    TORCH_CHECK(dtype == at::kBFloat16, "expected float32 or bfloat16, not ", dtype);
    body(BFloat16{});
  }
}

Tensor pack(const Tensor& weights, at::ScalarType dtype) {
  const Tensor source = weights.contiguous();
  const int64_t outputs = source.size(0), inputs = source.size(1);
  Tensor packed = at::empty({num_panels(outputs) * kPanel, inputs}, source.options());
  with_dtype(dtype, [&](auto t) {
    using T = decltype(t);
    TORCH_CHECK(inputs % Dot<T>::kStep == 0, "an odd number of inputs");
    if (source.scalar_type() == at::kChar) {
      pack_weights<T, int8_t>(read<int8_t>(source), outputs, inputs, written<int8_t>(packed));
    } else {
      TORCH_CHECK(source.scalar_type() == dtype, "expected int8 weights or weights of ", dtype);
      pack_weights<T, T>(read<T>(source), outputs, inputs, written<T>(packed));
    }
  });
  return packed;
}

Tensor apply_linear(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& scales,
                    const std::optional<Tensor>& bias, int64_t outputs, bool float_output) {
  const Tensor rows = x.contiguous();
  const int64_t inputs = rows.size(-1), count = rows.numel() / inputs;
  auto sizes = rows.sizes().vec();
  sizes.back() = outputs;
  Tensor out = at::empty(sizes, float_output ? rows.options().dtype(at::kFloat) : rows.options());
  with_dtype(rows.scalar_type(), [&](auto t) {
    using T = decltype(t);
    const auto run = [&](auto w, auto o) {
      using W = decltype(w);
      using Out = decltype(o);
      linear<T, W, Out>(read<T>(rows), count, inputs, read<W>(packed), read<float>(scales), read<T>(bias), outputs,
                        written<Out>(out));
    };
    const auto run_weights = [&](auto w) {
      if (out.scalar_type() == at::kFloat) {
        run(w, float{});
      } else if constexpr (!std::is_same_v<T, float>) {
        run(w, T{});
      }
    };
    if (packed.scalar_type() == at::kChar) {
      run_weights(int8_t{});
    } else {
      run_weights(T{});
    }
  });
  return out;
}

// The tensor, copied unless the heads of a token lie one after another.
Tensor with_dense_heads(const Tensor& tensor) {
  return tensor.stride(2) == 1 && tensor.stride(1) == tensor.size(2) ? tensor : tensor.contiguous();
}

Tensor attend(const Tensor& queries, const Tensor& keys, const Tensor& values, const Tensor& cache, int64_t layer,
              const Tensor& slots, const Tensor& query_starts, const Tensor& context_lens,
              const Tensor& block_tables, double scale, double softcap, int64_t window) {
  // queries [T, H, D]; keys, values [T, G, D]; cache [L, 2, B, P, G, D]
  const Tensor query = with_dense_heads(queries), key = with_dense_heads(keys), value = with_dense_heads(values);
  Tensor out = at::empty({query.size(0), query.size(1), query.size(2)}, query.options());
  const AttentionShape shape{query.size(0),        context_lens.size(0), query.size(1),   key.size(1),
                             query.size(2),        cache.size(3),        block_tables.size(1), query.stride(0),
                             key.stride(0),        value.stride(0)};
  const AttentionOptions options{float(scale), float(softcap), window};
  with_dtype(query.scalar_type(), [&](auto t) {
    using T = decltype(t);
    T* key_cache = written<T>(cache) + layer * cache.stride(0);
    paged_attention<T>(shape, options, read<T>(query), read<T>(key), read<T>(value), key_cache,
                       key_cache + cache.stride(1), read<int64_t>(slots), read<int64_t>(query_starts), read<int64_t>(context_lens),
                       read<int64_t>(block_tables), written<T>(out));
  });
  return out;
}

// A model that was compiled ahead of time. Unlike torch's own Python binding it runs without the interpreter's lock.
class CompiledModel : public torch::CustomClassHolder {
 public:
  explicit CompiledModel(const std::string& package) : loader_(package, "model", /*run_single_threaded=*/true) {}

  std::vector<std::string> constant_names() { return loader_.get_constant_fqns(); }

  // The tensors stay the caller's, who keeps them alive.
  void set_constants(const c10::Dict<std::string, Tensor>& constants) {
    std::unordered_map<std::string, Tensor> named;
    for (const auto& item : constants) named.emplace(item.key(), item.value());
    loader_.load_constants(named, /*use_inactive=*/false, /*check_full_update=*/true, /*user_managed=*/true);
  }

  Tensor run(const std::vector<Tensor>& inputs) { return loader_.run(inputs).at(0); }

 private:
  torch::inductor::AOTIModelPackageLoader loader_;
};

}  // namespace

TORCH_LIBRARY(servegraph, library) {
  library.class_<CompiledModel>("CompiledModel")
      .def(torch::init<const std::string&>())
      .def("constant_names", &CompiledModel::constant_names)
      .def("set_constants", &CompiledModel::set_constants)
      .def("run", &CompiledModel::run);
  library.def("pack(Tensor weights, ScalarType dtype) -> Tensor");
  library.def(
      "linear(Tensor x, Tensor packed, Tensor? scales, Tensor? bias, int outputs, bool float_output) -> Tensor");
  library.def(
      "paged_attention(Tensor query, Tensor key, Tensor value, Tensor(a!) cache, int layer, Tensor slots, "
      "Tensor query_starts, Tensor context_lens, Tensor block_tables, float scale, float softcap, int window) -> "
      "Tensor");
}

TORCH_LIBRARY_IMPL(servegraph, CPU, library) {
  library.impl("pack", pack);
  library.impl("linear", apply_linear);
  library.impl("paged_attention", attend);
}

}  // namespace servegraph
