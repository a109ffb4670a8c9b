#include "ops/product_cuda.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/cublas_product.h"
#include "ops/has_kernel.h"
#include "ops/kernel_call.h"

namespace braid::cuda {
namespace {

using kernels::CublasProduct;
using kernels::ProductShape;

constexpr std::uint32_t kLeastAlignment = 16, kBlockAlignment = 256;  // bytes; the allocator's blocks have the latter

struct Factors {
  const at::Tensor &a, &b, &bias;
};

// The products of one shape. cuBLAS expects its first choice to be the fastest at full clocks; in training the GPU's
// power limit lowers the clock, and other algorithms win. So after some uses, which are steps of training, all are
// timed. Only those that give the bits of the first choice are taken: the choice never changes a result.
class TunedProduct {
 public:
  explicit TunedProduct(const ProductShape& shape) : product_(shape), may_choose_(product_.algorithms() > 1) {}

  bool is_possible() const { return product_.algorithms() > 0; }

  void run(const Factors& factors, const at::Tensor& result) {
    if (may_choose_ && ++uses_ == kUsesBeforeChoice) choose(factors, result);
    run(chosen_, factors, result);
  }

 private:
  static constexpr int kUsesBeforeChoice = 4, kRounds = 3;
  static constexpr float kRoundMs = 4, kWorthwhile = 0.99F;

  void run(int algorithm, const Factors& factors, const at::Tensor& result) {
    const auto bytes = static_cast<std::int64_t>(product_.workspace_bytes(algorithm));
    const at::Tensor workspace = bytes > 0 ? at::empty({bytes}, result.options().dtype(at::kByte)) : at::Tensor();
    product_.run(
        algorithm,
        {factors.a.data_ptr(), factors.b.data_ptr(), factors.bias.defined() ? factors.bias.data_ptr() : nullptr,
         result.data_ptr(), bytes > 0 ? workspace.data_ptr() : nullptr},
        c10::cuda::getCurrentCUDAStream());
  }

  float time_ms(int algorithm, const Factors& factors, const at::Tensor& result, int runs) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record();
    for (int i = 0; i < runs; ++i) run(algorithm, factors, result);
    end.record();
    end.synchronize();
    return begin.elapsed_time(end) / static_cast<float>(runs);
  }

  void choose(const Factors& factors, const at::Tensor& result) {
    at::Tensor first, other;
    try {
      first = at::zeros_like(result), other = at::zeros_like(result);
    } catch (const c10::OutOfMemoryError&) {
      return;
    }
    const float first_ms = time_ms(0, factors, first.zero_(), 1);
    const int runs = std::max(1, static_cast<int>(kRoundMs / first_ms));
    first.zero_();
    run(0, factors, first);
    std::vector<std::pair<float, int>> times;
    for (int i = 0; i < product_.algorithms(); ++i) {
      run(i, factors, other.zero_());
      const at::ScalarType bits = result.element_size() == 4 ? at::kInt : at::kShort;
      if (at::equal(first.view(bits), other.view(bits))) times.emplace_back(kRoundMs * 1e3F, i);
    }
    for (int round = 0; round < kRounds; ++round)
      for (auto& [ms, algorithm] : times) ms = std::min(ms, time_ms(algorithm, factors, other, runs));
    const auto fastest = *std::min_element(times.begin(), times.end());
    if (fastest.first < kWorthwhile * times[0].first) chosen_ = fastest.second;
  }

  CublasProduct product_;
  bool may_choose_;
  int uses_ = 0, chosen_ = 0;
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

ProductShape shape_of(const Factors& factors, const at::Tensor& result, bool add) {
  const auto& [a, b, bias] = factors;
  const bool are_blocks = is_aligned(a, kBlockAlignment) && is_aligned(b, kBlockAlignment) &&
                          is_aligned(result, kBlockAlignment) && (!bias.defined() || is_aligned(bias, kBlockAlignment));
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
          .add = add,
          .has_bias = bias.defined()};
}

// False, and nothing is done, if cuBLAS cannot do it.
bool multiply(const Factors& factors, const at::Tensor& result, bool add) {
  static std::mutex mutex;
  static std::map<std::pair<int, ProductShape>, TunedProduct> products;
  const c10::cuda::CUDAGuard guard(factors.a.device());
  const ProductShape shape = shape_of(factors, result, add);
  const std::scoped_lock lock(mutex);
  TunedProduct& product = products.try_emplace({factors.a.get_device(), shape}, shape).first->second;
  if (!product.is_possible()) return false;
  product.run(factors, result);
  return true;
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
  const at::Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
  return multiply({a, b, bias}, result, false) ? result : bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
}

void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool is_first) {
  if (multiply({a, b, {}}, sum, !is_first)) return;
  at::Tensor result = sum;
  at::addmm_out(result, result, a, b, sum.scalar_type(), is_first ? 0 : 1);
}

}  // namespace braid::cuda
