#include "ops/product_cuda.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <atomic>
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
using kernels::Gelu;
using kernels::ProductShape;

constexpr std::uint32_t kLeastAlignment = 16, kBlockAlignment = 256;  // bytes; the allocator's blocks have the latter

struct Factors {
  const at::Tensor &a, &b, &bias;
  const at::Tensor& aux;  // of a GELU
};

void* data_or_null(const at::Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }

std::atomic<std::int64_t> steps_ended = 0;

// The products of one shape. cuBLAS expects its first choice to be the fastest at full clocks; in training the GPU's
// power limit lowers the clock, and other algorithms win. So those of a shape that recurs are timed. Only algorithms
// that give the bits of the first choice are taken: the choice never changes a result.
class TunedProduct {
 public:
  explicit TunedProduct(const ProductShape& shape) : product_(shape) {}

  bool is_possible() const { return product_.algorithms() > 0; }
  bool is_chosen() const { return is_chosen_; }

  bool recurs() {
    const std::int64_t step = steps_ended;
    if (std::exchange(last_step_, step) != step) ++steps_;
    return steps_ >= kRecurringSteps;
  }

  void run(const Factors& factors, const at::Tensor& result) { run(chosen_, factors, result); }

  // Takes some 50 ms, or as long as some 50 products. The algorithms are compared in several rounds through all of
  // them, since the clock changes meanwhile.
  void choose(const Factors& factors, const at::Tensor& result) {
    is_chosen_ = true;
    if (product_.algorithms() < 2) return;
    at::Tensor first, other, first_aux;
    try {
      first = at::zeros_like(result), other = at::zeros_like(result);
      run(0, factors, first);
      if (factors.aux.defined()) first_aux = factors.aux.clone();
    } catch (const c10::OutOfMemoryError&) {
      return;
    }
    const int runs = std::max(1, static_cast<int>(kRoundMs / time_ms(0, factors, other, 1)));
    std::vector<std::pair<std::array<float, kRounds>, int>> times;
    for (int i = 0; i < product_.algorithms(); ++i) {
      run(i, factors, other.zero_());
      if (have_same_bits(first, other) && (!first_aux.defined() || have_same_bits(first_aux, factors.aux)))
        times.push_back({{}, i});
    }
    for (std::size_t round = 0; round < kRounds; ++round)
      for (auto& [ms, algorithm] : times) ms[round] = time_ms(algorithm, factors, other, runs);
    for (auto& [ms, algorithm] : times) std::sort(ms.begin(), ms.end());
    const auto median = [](const auto& timed) { return timed.first[kRounds / 2]; };
    chosen_ = std::ranges::min_element(times, {}, median)->second;
  }

 private:
  static constexpr int kRecurringSteps = 4;
  static constexpr std::size_t kRounds = 5;
  static constexpr float kRoundMs = 1;

  static bool have_same_bits(const at::Tensor& a, const at::Tensor& b) {
    const at::ScalarType bits = a.element_size() == 4 ? at::kInt : at::kShort;
    return at::equal(a.view(bits), b.view(bits));
  }

  void run(int algorithm, const Factors& factors, const at::Tensor& result) {
    const auto bytes = static_cast<std::int64_t>(product_.workspace_bytes(algorithm));
    const at::Tensor workspace = bytes > 0 ? at::empty({bytes}, result.options().dtype(at::kByte)) : at::Tensor();
    product_.run(algorithm,
                 {factors.a.data_ptr(), factors.b.data_ptr(), data_or_null(factors.bias), result.data_ptr(),
                  data_or_null(workspace), data_or_null(factors.aux)},
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

  CublasProduct product_;
  std::int64_t last_step_ = -1;
  int steps_ = 0, chosen_ = 0;
  bool is_chosen_ = false;
};

// Limits, far above what a model needs, on the time that is spent on choices and on the memory for shapes.
constexpr std::size_t kMostChoices = 128, kMostShapes = 4096;

class TunedProducts {
 public:
  // False, and nothing is done, if cuBLAS cannot do it.
  bool run(int gpu, const ProductShape& shape, const Factors& factors, const at::Tensor& result) {
    const std::lock_guard lock(mutex_);
    if (products_.size() >= kMostShapes) std::erase_if(products_, [](const auto& p) { return !p.second.is_chosen(); });
    TunedProduct& product = products_.try_emplace({gpu, shape}, shape).first->second;
    if (!product.is_possible()) return false;
    if (!product.is_chosen() && choices_ < kMostChoices && product.recurs()) {
      ++choices_;
      product.choose(factors, result);
    }
    product.run(factors, result);
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, ProductShape>, TunedProduct> products_;
  std::size_t choices_ = 0;
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
  static TunedProducts products;
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

void note_end_of_step() { ++steps_ended; }

}  // namespace braid::cuda
