#include "ops/grouped_linear_fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_grouped_mm.h>
#include <ATen/ops/empty_like.h>

#include "base/error.h"
#include "ops/grouped_linear_cuda.h"
#include "ops/has_kernel.h"
#include "ops/quantize_experts.h"

namespace braid {
namespace {

// Each expert's rows times its matrix's transpose.   rows: [R, K], matrices: [E, N, K] -> [R, N]
at::Tensor multiply_rows(const Fp8Matrix& rows, const Fp8Matrix& matrices, const ExpertRows& experts,
                         at::ScalarType dtype, Fp8Sum sum) {
  if (!rows.values.is_cuda() || dtype != at::kBFloat16)
    return grouped_linear_forward(dequantize(rows), dequantize(matrices), experts).to(dtype);
  if constexpr (kHasKernels)
    if (sum == Fp8Sum::Fast && cuda::has_row_products(rows, matrices))
      return cuda::multiply_rows(experts.ends(), rows, matrices);
  return at::_scaled_grouped_mm(rows.values, matrices.values.transpose(1, 2), rows.scales, matrices.scales,
                                experts.ends(), {}, {}, dtype, /*use_fast_accum=*/sum == Fp8Sum::Fast);
}

// grad^T rows of each expert. libtorch's grouped product in fp8 has results in bf16 only.   grad: [Out, R], rows: [In,
// R] -> [E, Out, In]
at::Tensor multiply_columns(const Fp8Matrix& grad, const GroupedFp8Saved& saved, const Weight& weight,
                            const ExpertRows& experts) {
  if constexpr (kHasKernels)
    if (saved.padded_ends.defined()) {
      const std::int64_t count = saved.padded_ends.numel();
      const at::Tensor result =
          at::_scaled_grouped_mm(grad.values, saved.columns.values.t(), grad.scales.repeat({count}),
                                 saved.columns.scales.repeat({count}), saved.padded_ends, {}, {}, at::kBFloat16,
                                 /*use_fast_accum=*/kWeightGradientSum == Fp8Sum::Fast);
      cuda::clear_expert_gradients(experts.ends(), result);
      return result;
    }
  const Weight like = {.value = at::empty_like(weight.value, weight.value.options().dtype(at::kFloat))};
  const auto rows_of = [](const Fp8Matrix& columns) { return dequantize(columns).t(); };
  return grouped_linear_backward(rows_of(grad), rows_of(saved.columns), like, experts, false)[1];
}

at::Tensor weight_gradient(const Fp8Matrix& grad, const GroupedFp8Saved& saved, const Weight& weight,
                           const ExpertRows& experts) {
  const auto write = [&](at::Tensor sum, bool is_first) {
    if constexpr (kHasKernels)
      if (saved.padded_ends.defined() && cuda::has_gradient_products(grad, saved.columns, sum, is_first))
        return cuda::write_expert_gradients(saved.padded_ends, grad, saved.columns, sum, is_first);
    const at::Tensor product = multiply_columns(grad, saved, weight, experts);
    is_first ? sum.copy_(product) : sum.add_(product);
  };
  if (weight.sum->write_by(write, weight.gradient_parts)) return {};
  const at::Tensor result = at::empty_like(weight.value, weight.value.options().requires_grad(false));
  write(result, true);
  return result;
}

}  // namespace

at::Tensor grouped_linear_fp8_forward(const Fp8Matrix& rows, const Weight& weight, const ExpertRows& experts,
                                      bool rows_want_gradient) {
  const Fp8Pair& matrices = weight.fp8->of(weight.value, {.rows = true, .columns = rows_want_gradient});
  return multiply_rows(rows, matrices.rows, experts, weight.value.scalar_type(), kOutputSum);
}

Tensors grouped_linear_fp8_backward(const Fp8Pair& grad, const GroupedFp8Saved& saved, const Weight& weight,
                                    const ExpertRows& experts) {
  Tensors grads(2);
  if (grad.rows.values.defined()) {
    const Fp8Pair& matrices = weight.fp8->of(weight.value, {.columns = true});
    grads[0] = multiply_rows(grad.rows, matrices.columns, experts, weight.value.scalar_type(), kInputGradientSum);
  }
  if (grad.columns.values.defined()) grads[1] = weight_gradient(grad.columns, saved, weight, experts);
  return grads;
}

void check_fp8_features(const at::Tensor& weight) {
  BRAID_CHECK(weight.size(1) % kFp8Multiple == 0 && weight.size(2) % kFp8Multiple == 0,
              "features of an fp8 product are multiples of {}, not {} -> {}", kFp8Multiple, weight.size(2),
              weight.size(1));
}

at::Tensor grouped_linear_fp8(const at::Tensor& rows, const Weight& weight, const ExpertRows& experts, Result result) {
  const at::Tensor& matrices = weight.value;
  check_grouped_linear(rows, matrices, experts);
  if (rows.size(0) == 0) return grouped_linear(rows, weight, experts, result);
  check_fp8_features(matrices);
  const bool trains = needs_gradient({matrices}), rows_train = rows.requires_grad();
  const auto forward = [&]() -> OutputAndSaved<GroupedFp8Saved> {
    const Fp8Groups groups = fp8_groups(experts.ends(), {rows});
    if (result == Result::Unused)
      return {rows.new_empty({rows.size(0), matrices.size(1)}),
              {trains ? quantize_groups(rows, {.columns = true}, groups).columns : Fp8Matrix(), groups.padded_ends}};
    const Fp8Pair factor = quantize_groups(rows, {.rows = true, .columns = trains}, groups);
    return {grouped_linear_fp8_forward(factor.rows, weight, experts, rows_train), {factor.columns, groups.padded_ends}};
  };
  const auto backward = [weight, experts, trains, rows_train](const at::Tensor& grad, const GroupedFp8Saved& saved) {
    const Fp8Pair factor =
        quantize_groups(grad, {.rows = rows_train, .columns = trains}, {experts.ends(), saved.padded_ends});
    return grouped_linear_fp8_backward(factor, saved, weight, experts);
  };
  return differentiable("GroupedLinearFp8Backward", {rows, matrices}, forward, backward);
}

}  // namespace braid
