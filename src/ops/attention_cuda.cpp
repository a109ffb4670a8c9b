#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "ops/attention.h"
#include "ops/has_kernel.h"
#include "ops/kernel_call.h"
#ifdef BRAID_CUDNN
#include "kernels/attention.h"
#endif

namespace braid::cuda {
namespace {

OutputAndSaved<AttentionSaved> forward_by_flash(const at::Tensor& groups, const PackedSequences& sequences, bool causal,
                                                double scale) {
  const auto [q, k, v] = split_groups(groups);
  const at::Tensor& cu_seqlens = sequences.cu_seqlens;
  const std::int64_t longest = sequences.max_length;
  const auto [out, log_sum_exp, random_state, unused, debug_mask] =
      at::_flash_attention_forward(q.contiguous(), k.contiguous(), v.contiguous(), cu_seqlens, cu_seqlens, longest,
                                   longest, /*dropout_p=*/0, causal, /*return_debug_mask=*/false, scale);
  return {out, {AttentionPath::Flash, out, log_sum_exp, random_state, unused}};
}

at::Tensor backward_by_flash(const at::Tensor& grad, const at::Tensor& groups, const AttentionSaved& saved,
                             const PackedSequences& sequences, bool causal, double scale) {
  const auto [q, k, v] = split_groups(groups);
  const at::Tensor& cu_seqlens = sequences.cu_seqlens;
  const std::int64_t longest = sequences.max_length;
  const auto [q_grad, k_grad, v_grad] = at::_flash_attention_backward(
      grad.contiguous(), q.contiguous(), k.contiguous(), v.contiguous(), saved.out, saved.log_sum_exp, cu_seqlens,
      cu_seqlens, longest, longest, /*dropout_p=*/0, causal, saved.random_state, saved.unused, scale);
  return join_groups({q_grad, k_grad, v_grad});
}

#ifdef BRAID_CUDNN

struct CudnnCall {
  kernels::CudnnAttention shape{};
  at::Tensor lengths{}, in_inputs{}, in_output{}, in_statistics{};  // of packed parts
};

bool have_one_length(const PackedSequences& sequences) {
  return sequences.max_length * sequences.count() == sequences.tokens();
}

std::int64_t rounded_up(std::int64_t size) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(size)));
}

// cuDNN's idea of `groups`: parts that know nothing of each other. The groups of one causal sequence are parts, because
// its length is that of all batches; so are several sequences of equal length if a group has one query head, so that
// all query heads are equally far apart. Everything else is packed, single images too, because each has a length of its
// own and would need a plan of its own: a part is one group of one sequence. The number of packed sequences and the
// longest length are rounded up to powers of two, so that batches share plans; the parts that are too many are empty.
kernels::CudnnAttention cudnn_shape(const at::Tensor& groups, const PackedSequences& sequences, bool causal,
                                    double scale) {
  const std::int64_t queries = groups.size(2) - 2, width = groups.size(3), heads = groups.size(1) * queries;
  kernels::CudnnAttention shape = {.query_heads = queries,
                                   .key_heads = 1,
                                   .width = width,
                                   .queries = {groups.stride(1), groups.stride(2), groups.stride(0)},
                                   .keys = {groups.stride(1), groups.stride(2), groups.stride(0)},
                                   .out = {queries * width, width, heads * width},
                                   .causal = causal,
                                   .deterministic = at::globalContext().deterministicAlgorithms(),
                                   .scale = scale};
  const bool one = sequences.count() == 1;
  if (queries == 1 && have_one_length(sequences) && !one) {
    shape.parts = sequences.count();
    shape.length = sequences.max_length;
    shape.query_heads = shape.key_heads = groups.size(1);
    shape.queries = shape.keys = {shape.length * groups.stride(0), groups.stride(1), groups.stride(0)};
    shape.out = {shape.length * shape.out.token, width, shape.out.token};
  } else if (causal && one) {
    shape.parts = groups.size(1);
    shape.length = groups.size(0);
  } else {
    shape.packed = true;
    shape.parts = rounded_up(sequences.count()) * groups.size(1);
    shape.length = std::max<std::int64_t>(128, rounded_up(sequences.max_length));
  }
  return shape;
}

CudnnCall cudnn_call(const kernels::CudnnAttention& shape, const at::Tensor& groups, const PackedSequences& sequences) {
  if (!shape.packed) return {.shape = shape};
  const std::int64_t count = sequences.count(), heads = groups.size(1), slots = shape.parts / heads;
  const at::Tensor cu_seqlens = sequences.cu_seqlens.to(at::kLong);
  const at::Tensor ends = cu_seqlens.slice(0, count).expand({slots - count});
  const at::Tensor begin = at::cat({cu_seqlens.slice(0, 0, count), ends});
  const at::Tensor length = at::cat({cu_seqlens.slice(0, 1), ends}) - begin;
  const at::Tensor group = at::arange(heads, begin.options());
  const auto table = [&](std::int64_t token, const at::Tensor& of_group) {
    return at::cat({(begin.unsqueeze(1) * token + of_group).flatten(), cu_seqlens.slice(0, count) * token});
  };
  const std::int64_t queries = shape.query_heads;
  return {.shape = shape,
          .lengths = length.to(at::kInt).unsqueeze(1).expand({slots, heads}).contiguous(),
          .in_inputs = table(shape.queries.token, group * shape.queries.part),
          .in_output = table(shape.out.token, group * shape.out.part),
          .in_statistics = table(heads * queries, group * length.unsqueeze(1) * queries)};
}

kernels::AttentionTensors pointers(const CudnnCall& call, const at::Tensor& groups, const at::Tensor& out,
                                   const at::Tensor& statistics) {
  const at::Tensor k = groups.select(2, groups.size(2) - 2), v = groups.select(2, groups.size(2) - 1);
  return {.q = groups.data_ptr(),
          .k = k.data_ptr(),
          .v = v.data_ptr(),
          .out = out.data_ptr(),
          .statistics = statistics.data_ptr(),
          .parts = {data<std::int32_t>(call.lengths), data<std::int64_t>(call.in_inputs),
                    data<std::int64_t>(call.in_output), data<std::int64_t>(call.in_statistics)}};
}

// Memory that lives as long as this object; the stream's order keeps later users away.
struct Workspace {
  const at::Tensor& like;
  at::Tensor bytes{};
  kernels::AllocateWorkspace allocate() {
    return [this](std::size_t size) {
      bytes.reset();  // before the next one: both would exist at once
      bytes = at::empty({static_cast<std::int64_t>(size)}, like.options().dtype(at::kByte));
      return bytes.data_ptr();
    };
  }
};

// cuDNN loads 16 bytes at a time.
bool cudnn_may(const at::Tensor& groups) {
  const std::int64_t width = groups.size(3);
  const bool aligned = groups.stride(0) % 8 == 0 && groups.stride(1) % 8 == 0 && groups.stride(2) % 8 == 0 &&
                       reinterpret_cast<std::uintptr_t>(groups.data_ptr()) % 16 == 0;
  return groups.scalar_type() == at::kBFloat16 && width % 8 == 0 && width <= 128 && groups.stride(3) == 1 && aligned;
}

AttentionSaved outputs_for(const at::Tensor& groups, AttentionPath path) {
  const std::int64_t heads = groups.size(1) * (groups.size(2) - 2);
  const auto options = groups.options().requires_grad(false);
  return {.path = path,
          .out = at::empty({groups.size(0), heads, groups.size(3)}, options),
          .log_sum_exp = at::empty({groups.size(0) * heads}, options.dtype(at::kFloat))};
}

kernels::AttentionGroups kernel_groups(const at::Tensor& groups) {
  return {data<const __nv_bfloat16>(groups),
          groups.size(0),
          groups.size(1),
          groups.size(2) - 2,
          groups.size(3),
          groups.stride(0),
          groups.stride(1),
          groups.stride(2)};
}

// Its statistics are those of cuDNN, which computes the backward.
OutputAndSaved<AttentionSaved> forward_by_kernel(const at::Tensor& groups, const PackedSequences& sequences,
                                                 double scale) {
  const AttentionSaved saved = outputs_for(groups, AttentionPath::BraidFlash);
  kernels::attention_forward(kernel_groups(groups), {data<std::int32_t>(sequences.cu_seqlens), sequences.count()},
                             scale, data<__nv_bfloat16>(saved.out), data<float>(saved.log_sum_exp),
                             c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {saved.out, saved};
}

// Undefined output if cuDNN has no plan for this, or none for a backward that will follow.
OutputAndSaved<AttentionSaved> forward_by_kernel_or_cudnn(const at::Tensor& groups, const PackedSequences& sequences,
                                                          bool causal, double scale) {
  const c10::cuda::CUDAGuard guard(groups.device());
  const kernels::CudnnAttention shape = cudnn_shape(groups, sequences, causal, scale);
  if (groups.requires_grad() && !kernels::has_cudnn_attention_backward(shape)) return {};
  if (!causal && scale > 0 && kernels::has_attention(kernel_groups(groups)))
    return forward_by_kernel(groups, sequences, scale);
  const CudnnCall call = cudnn_call(shape, groups, sequences);
  const AttentionSaved saved = outputs_for(groups, shape.packed ? AttentionPath::CudnnPacked : AttentionPath::Cudnn);
  Workspace workspace{saved.out};
  const bool done = kernels::cudnn_attention_forward(shape, pointers(call, groups, saved.out, saved.log_sum_exp),
                                                     workspace.allocate(), c10::cuda::getCurrentCUDAStream());
  if (!done) return {};
  return {saved.out, saved};
}

at::Tensor backward_by_cudnn(const at::Tensor& grad, const at::Tensor& groups, const AttentionSaved& saved,
                             const PackedSequences& sequences, bool causal, double scale) {
  const CudnnCall call = cudnn_call(cudnn_shape(groups, sequences, causal, scale), groups, sequences);
  const at::Tensor dense_grad = grad.contiguous();
  const at::Tensor result = at::empty_strided(groups.sizes(), groups.strides(), dense_grad.options());
  const kernels::AttentionTensors of_result = pointers(call, result, saved.out, saved.log_sum_exp);
  const kernels::AttentionGradients gradients{dense_grad.data_ptr(), const_cast<void*>(of_result.q),
                                              const_cast<void*>(of_result.k), const_cast<void*>(of_result.v)};
  Workspace workspace{result};
  const c10::cuda::CUDAGuard guard(groups.device());
  const bool done =
      kernels::cudnn_attention_backward(call.shape, pointers(call, groups, saved.out, saved.log_sum_exp), gradients,
                                        workspace.allocate(), c10::cuda::getCurrentCUDAStream());
  BRAID_CHECK(done, "cuDNN has a forward of this attention, but no backward: {} tokens, {} sequences", groups.size(0),
              sequences.count());
  return result;
}

#endif

}  // namespace

bool has_attention(const at::Tensor& groups) {
  const at::ScalarType dtype = groups.scalar_type();
  const std::int64_t width = groups.size(3);
  return groups.is_cuda() && groups.numel() > 0 && (dtype == at::kBFloat16 || dtype == at::kHalf) && width % 8 == 0 &&
         width <= 256;
}

OutputAndSaved<AttentionSaved> attention_forward(const at::Tensor& groups, const PackedSequences& sequences,
                                                 bool causal, double scale) {
#ifdef BRAID_CUDNN
  if (cudnn_may(groups) && WithoutKernels::count == 0)
    if (const auto result = forward_by_kernel_or_cudnn(groups, sequences, causal, scale); result.output.defined())
      return result;
#endif
  return forward_by_flash(groups, sequences, causal, scale);
}

at::Tensor attention_backward(const at::Tensor& grad, const at::Tensor& groups, const AttentionSaved& saved,
                              const PackedSequences& sequences, bool causal, double scale) {
#ifdef BRAID_CUDNN
  if (saved.path != AttentionPath::Flash) return backward_by_cudnn(grad, groups, saved, sequences, causal, scale);
#endif
  return backward_by_flash(grad, groups, saved, sequences, causal, scale);
}

}  // namespace braid::cuda
