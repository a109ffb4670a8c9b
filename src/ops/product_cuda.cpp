#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <map>
#include <mutex>
#include <utility>

#include "kernels/column_sum.h"
#include "kernels/cublas_product.h"
#include "ops/has_kernel.h"
#include "ops/kernel_call.h"
#include "ops/product.h"

namespace braid::cuda {

namespace {

using kernels::CublasProduct;
using kernels::Gelu;
using kernels::ProductShape;

constexpr std::uint32_t kLeastAlignment = 16, kBlockAlignment = 256;  // bytes; the allocator's blocks have the latter

struct Factors {
  const at::Tensor &a, &b, &bias;
  const at::Tensor& aux;  // of a GELU
};

void* data_or_null(const at::Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }

// cuBLAS takes some 20 us to choose the algorithm of a shape, so the choices are kept. To time its other algorithms
// gains nothing (docs/benchmarks/llm_slice.md).
class Products {
 public:
  // False, and nothing is done, if cuBLAS cannot do it.
  bool run(int gpu, const ProductShape& shape, const Factors& factors, const at::Tensor& result) {
    const std::lock_guard lock(mutex_);
    if (products_.size() >= kMostShapes) products_.clear();
    CublasProduct& product = products_.try_emplace({gpu, shape}, shape).first->second;
    if (!product.is_possible()) return false;
    const auto bytes = static_cast<std::int64_t>(product.workspace_bytes());
    const at::Tensor workspace = bytes > 0 ? at::empty({bytes}, result.options().dtype(at::kByte)) : at::Tensor();
    product.run({factors.a.data_ptr(), factors.b.data_ptr(), data_or_null(factors.bias), result.data_ptr(),
                 data_or_null(workspace), data_or_null(factors.aux)},
                c10::cuda::getCurrentCUDAStream());
    return true;
  }

 private:
  static constexpr std::size_t kMostShapes = 4096;  // images have many sizes

  std::mutex mutex_;
  std::map<std::pair<int, ProductShape>, CublasProduct> products_;
};

bool is_by_rows(const at::Tensor& x) { return x.stride(1) == 1; }

std::int64_t stride_of(const at::Tensor& x) { return is_by_rows(x) ? x.stride(0) : x.stride(1); }

bool is_aligned(const at::Tensor& x, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(x.data_ptr()) % bytes == 0;
}

bool is_possible(const at::Tensor& x) {
  return x.dim() == 2 && x.numel() > 0 && (x.stride(0) == 1 || x.stride(1) == 1) && stride_of(x) % 8 == 0 &&
         stride_of(x) >= x.size(is_by_rows(x) ? 1 : 0) && is_aligned(x, kLeastAlignment);
}

// How a product is stored.
struct Storing {
  bool add = false;
  Gelu gelu = Gelu::None;
};

ProductShape shape_of(const Factors& factors, const at::Tensor& result, const Storing& storing) {
  const auto& [a, b, bias, aux] = factors;
  const auto is_block = [](const at::Tensor& x) { return !x.defined() || is_aligned(x, kBlockAlignment); };
  const bool are_blocks = is_block(a) && is_block(b) && is_block(result) && is_block(bias) && is_block(aux);
  return {.rows = a.size(0),
          .columns = b.size(1),
          .depth = a.size(1),
          .left_stride = stride_of(a),
          .right_stride = stride_of(b),
          .stride = result.stride(0),
          .left_transposed = !is_by_rows(a),
          .right_transposed = !is_by_rows(b),
          .alignment = are_blocks ? kBlockAlignment : kLeastAlignment,
          .is_float = result.scalar_type() == at::kFloat,
          .add = storing.add,
          .has_bias = bias.defined(),
          .gelu = storing.gelu};
}

bool multiply(const Factors& factors, const at::Tensor& result, const Storing& storing) {
  static Products products;
  const c10::cuda::CUDAGuard guard(factors.a.device());
  return products.run(factors.a.get_device(), shape_of(factors, result, storing), factors, result);
}

at::Tensor empty_product(const at::Tensor& a, const at::Tensor& b) {
  return at::empty({a.size(0), b.size(1)}, a.options().requires_grad(false));
}

}  // namespace

bool has_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  return has_kernel({a, b, bias}) && a.scalar_type() == at::kBFloat16 && is_possible(a) && is_possible(b) &&
         b.size(1) % 8 == 0 && (!bias.defined() || (bias.is_contiguous() && is_aligned(bias, kLeastAlignment)));
}

bool has_sum_of_products(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  return (sum.scalar_type() == at::kBFloat16 || sum.scalar_type() == at::kFloat) && sum.is_contiguous() &&
         is_aligned(sum, kLeastAlignment) && has_product(a, b, {});
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const at::Tensor result = empty_product(a, b);
  return multiply({a, b, bias, {}}, result, {}) ? result : bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
}

void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool is_first) {
  if (multiply({a, b, {}, {}}, sum, {.add = !is_first})) return;
  at::Tensor result = sum;
  at::addmm_out(result, result, a, b, sum.scalar_type(), is_first ? 0 : 1);
}

ProductAndGelu product_with_gelu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const at::Tensor inner = empty_product(a, b), activated = empty_product(a, b);
  if (multiply({a, b, bias, inner}, activated, {.gelu = Gelu::Forward})) return {inner, activated};
  return {};
}

at::Tensor product_times_gelu_slope(const at::Tensor& a, const at::Tensor& b, const at::Tensor& inner) {
  const at::Tensor result = empty_product(a, b);
  return multiply({a, b, {}, inner}, result, {.gelu = Gelu::Backward}) ? result : at::Tensor();
}

at::Tensor column_sum(const at::Tensor& x) {
  const auto options = x.options().requires_grad(false);
  const at::Tensor rows = with_dense_rows(x), sums = at::empty({x.size(1)}, options);
  const std::int64_t count = kernels::column_sum_partials(x.size(0), x.size(1));
  const at::Tensor partials = at::empty({count, x.size(1)}, options.dtype(at::kFloat));
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::column_sum(const_matrix<T>(rows), data<float>(partials), data<T>(sums), stream);
  });
  return sums;
}

}  // namespace braid::cuda
