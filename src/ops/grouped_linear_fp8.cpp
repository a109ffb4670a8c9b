#include "ops/grouped_linear_fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_grouped_mm.h>
#include <ATen/ops/empty_like.h>

#include "base/error.h"
#include "ops/grouped_linear_cuda.h"
#include "ops/has_kernel.h"
#include "ops/quantize_cuda.h"

namespace braid {
namespace {

Fp8Pair quantize_groups(const at::Tensor& x, const Fp8Forms& wanted, const ExpertRows& experts,
                        const at::Tensor& padded_ends) {
  if constexpr (kHasKernels)
    if (padded_ends.defined()) return cuda::quantize_groups(x, wanted, experts.ends(), padded_ends);
  return quantize(x, wanted);
}

// Each expert's rows times its matrix's transpose.   rows: [R, K], matrices: [E, N, K] -> [R, N]
at::Tensor multiply_rows(const Fp8Matrix& rows, const Fp8Matrix& matrices, const ExpertRows& experts, bool has_kernel,
                         at::ScalarType dtype, Fp8Sum sum) {
  if (!has_kernel) return grouped_linear_forward(dequantize(rows), dequantize(matrices), experts).to(dtype);
  return at::_scaled_grouped_mm(rows.values, matrices.values.transpose(1, 2), rows.scales, matrices.scales,
                                experts.ends(), {}, {}, dtype, /*use_fast_accum=*/sum == Fp8Sum::Fast);
}

// grad^T rows of each expert. libtorch's grouped product in fp8 has results in bf16 only.   grad: [Out, R], rows: [In, R] -> [E, Out, In]
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
  const at::Tensor product = multiply_columns(grad, saved, weight, experts);
  const auto write = [&](at::Tensor sum, bool is_first) { is_first ? sum.copy_(product) : sum.add_(product); };
  return weight.sum->write_by(write) ? at::Tensor() : product.to(weight.value.scalar_type());
}

}  // namespace

OutputAndSaved<GroupedFp8Saved> grouped_linear_fp8_forward(const at::Tensor& rows, const Weight& weight,
                                                           const ExpertRows& experts, bool rows_want_gradient,
                                                           bool weight_wants_gradient) {
  at::Tensor padded_ends;
  if constexpr (kHasKernels)
    if (has_kernel({rows}) && cuda::can_quantize(rows)) padded_ends = cuda::padded_ends(experts.ends());
  const Fp8Pair factor = quantize_groups(rows, {.rows = true, .columns = weight_wants_gradient}, experts, padded_ends);
  const Fp8Pair& matrices = weight.fp8->of(weight.value, {.rows = true, .columns = rows_want_gradient});
  return {multiply_rows(factor.rows, matrices.rows, experts, padded_ends.defined(), rows.scalar_type(), kOutputSum),
          {factor.columns, padded_ends}};
}

Tensors grouped_linear_fp8_backward(const at::Tensor& grad, const GroupedFp8Saved& saved, const Weight& weight,
                                    const ExpertRows& experts, bool rows_want_gradient) {
  const bool has_weight_grad = saved.columns.values.defined();
  const Fp8Pair factor =
      quantize_groups(grad, {.rows = rows_want_gradient, .columns = has_weight_grad}, experts, saved.padded_ends);
  Tensors grads(2);
  if (rows_want_gradient) {
    const Fp8Pair& matrices = weight.fp8->of(weight.value, {.columns = true});
    grads[0] = multiply_rows(factor.rows, matrices.columns, experts, saved.padded_ends.defined(), grad.scalar_type(),
                             kInputGradientSum);
  }
  if (has_weight_grad) grads[1] = weight_gradient(factor.columns, saved, weight, experts);
  return grads;
}

at::Tensor grouped_linear_fp8(const at::Tensor& rows, const Weight& weight, const ExpertRows& experts) {
  const at::Tensor& matrices = weight.value;
  BRAID_CHECK(rows.size(0) > 0, "an fp8 product of no rows");
  BRAID_CHECK(matrices.size(1) % kFp8Multiple == 0 && matrices.size(2) % kFp8Multiple == 0,
              "features of an fp8 product are multiples of {}, not {} -> {}", kFp8Multiple, matrices.size(2),
              matrices.size(1));
  const bool trains = needs_gradient({matrices}), rows_train = rows.requires_grad();
  return differentiable(
      "GroupedLinearFp8Backward", {rows, matrices},
      [&] { return grouped_linear_fp8_forward(rows, weight, experts, rows_train, trains); },
      [weight, experts, rows_train](const at::Tensor& grad, const GroupedFp8Saved& saved) {
        return grouped_linear_fp8_backward(grad, saved, weight, experts, rows_train);
      });
}

}  // namespace braid
