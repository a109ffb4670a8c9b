#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstdint>

#include "kernels/mamba.h"
#include "ops/has_kernel.h"
#include "ops/kernel_call.h"
#include "ops/ssd_scan.h"

namespace braid::cuda {
namespace {

using kernels::Numbers;
using kernels::SsdScratch;
using kernels::SsdSizes;
using bf16 = __nv_bfloat16;

constexpr std::int64_t kMaxHeads = 65535;  // blocks in a grid's second dimension

bool is_number(const at::Tensor& x) {
  return x.is_cuda() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

// Rows that begin at multiples of 16 bytes.   x: [T, columns]
bool has_aligned_rows(const at::Tensor& x) {
  return x.stride(1) == 1 && x.stride(0) % 8 == 0 && reinterpret_cast<std::uintptr_t>(x.data_ptr()) % 16 == 0;
}

// [T, a, b] as aligned rows [T, a * b]: a view if it can be one, else a copy.
at::Tensor aligned_rows(const at::Tensor& x) {
  const at::Tensor rows = x.flatten(1);
  return has_aligned_rows(rows) ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

// Where a kernel writes: `to` itself, or memory of the form that kernels need, which finish() copies.
class Target {
 public:
  // [T, a, b] as aligned rows
  static Target rows(const at::Tensor& to) {
    const at::Tensor rows = to.flatten(1);
    return {to, has_aligned_rows(rows) && rows.is_alias_of(to) ? rows : at::empty(rows.sizes(), rows.options())};
  }
  // [T, h] or [h] with contiguous rows
  static Target numbers(const at::Tensor& to) {
    return {to, to.stride(-1) == 1 ? to : at::empty(to.sizes(), to.options())};
  }

  const at::Tensor& tensor() const { return written_; }
  void finish() const {
    if (!written_.is_alias_of(to_)) to_.copy_(written_.view_as(to_));
  }

 private:
  Target(const at::Tensor& to, const at::Tensor& written) : to_(to), written_(written) {}

  at::Tensor to_, written_;
};

Numbers numbers(const at::Tensor& x) { return {parameter(x), x.stride(0)}; }

// Keeps the tensors alive whose memory `kernel` names.
struct In {
  at::Tensor x, dt, A_log, B, C, D, dt_bias;
  kernels::SsdTensors kernel;

  explicit In(const SsdInputs& in)
      : x(aligned_rows(in.x)),
        dt(in.dt.stride(1) == 1 ? in.dt : in.dt.contiguous()),
        A_log(in.A_log.contiguous()),
        B(aligned_rows(in.B)),
        C(aligned_rows(in.C)),
        D(in.D.contiguous()),
        dt_bias(in.dt_bias.contiguous()),
        kernel{matrix<bf16>(x), matrix<bf16>(B), matrix<bf16>(C), numbers(dt),
               numbers(A_log),  numbers(D),      numbers(dt_bias)} {}
};

static_assert(kScanChunk == kernels::kSsdChunk);

const kernels::SsdChunk* chunks_of(const PackedSequences& sequences) {
  return reinterpret_cast<const kernels::SsdChunk*>(data<int>(sequences.chunks));
}

SsdSizes sizes_of(const SsdInputs& in, const SsdOptions& options, const PackedSequences& sequences) {
  return {.heads = in.x.size(1),
          .groups = in.B.size(1),
          .width = in.x.size(2),
          .state = in.B.size(2),
          .chunks = sequences.chunks.size(0),
          .dt_min = static_cast<float>(options.dt_min),
          .dt_max = static_cast<float>(options.dt_max)};
}

struct Scratch {
  at::Tensor steps, passed, tokens, sums, state_grads, score_grads;

  // With the steps of forward, for backward.
  Scratch(const SsdSizes& sizes, const at::Tensor& like, const at::Tensor& saved_steps = {}) : steps(saved_steps) {
    const auto empty = [&](at::ScalarType dtype, std::int64_t count) {
      return at::empty({count}, like.options().dtype(dtype));
    };
    const std::int64_t head_chunks = sizes.chunks * sizes.heads, state = sizes.width * sizes.state;
    if (!steps.defined()) {
      steps = empty(at::kFloat, head_chunks * kernels::kSsdStepFloats);
      return;
    }
    passed = empty(at::kFloat, head_chunks * state / kernels::kSsdPassed);
    tokens = empty(at::kFloat, head_chunks * kernels::kSsdTokenFloats);
    sums = empty(at::kFloat, head_chunks * 3);
    state_grads = empty(at::kBFloat16, head_chunks * state);
    score_grads = empty(at::kBFloat16, sizes.chunks * sizes.groups * kernels::kSsdChunk * kernels::kSsdChunk);
  }

  SsdScratch kernel() const {
    return {data<float>(steps), data<float>(passed),     data<float>(tokens),
            data<float>(sums),  data<bf16>(state_grads), data<bf16>(score_grads)};
  }
};

// Memory for the states that leave sequences: what enters an empty one leaves it.   [sequences, h, p, n]
at::Tensor leaving_states(const at::Tensor& entering, const SsdSizes& sizes, const PackedSequences& sequences,
                          const at::Tensor& like) {
  if (entering.defined()) return entering.clone();
  return at::zeros({sequences.count(), sizes.heads, sizes.width, sizes.state}, like.options().dtype(at::kFloat));
}

}  // namespace

bool has_ssd_scan(const SsdInputs& in) {
  const auto has_memory = [&] {
    const c10::cuda::CUDAGuard guard(in.x.device());
    return kernels::ssd_scan_has_memory();
  };
  return has_kernel({in.x, in.B, in.C}) && in.x.scalar_type() == at::kBFloat16 && is_number(in.dt) &&
         is_number(in.A_log) && is_number(in.D) && is_number(in.dt_bias) &&
         kernels::ssd_scan_has_shape(in.x.size(2), in.B.size(2)) && in.x.size(1) <= kMaxHeads && has_memory();
}

OutputAndSaved<SsdSaved> ssd_scan_forward(const SsdInputs& inputs, const SsdOptions& options,
                                          const PackedSequences& sequences, at::Tensor* final_states) {
  const In in(inputs);
  const SsdSizes sizes = sizes_of(inputs, options, sequences);
  const Scratch scratch(sizes, inputs.x);
  const at::Tensor y = at::empty(inputs.x.sizes(), inputs.x.options());
  const at::Tensor states = at::empty(
      {sizes.chunks, sizes.groups, sizes.heads / sizes.groups * sizes.width, sizes.state}, inputs.x.options());
  const at::Tensor initial = dense(inputs.initial_states);
  if (final_states != nullptr) *final_states = leaving_states(initial, sizes, sequences, inputs.x);
  call_kernel(inputs.x, [&]<class T>(cudaStream_t stream) {
    kernels::ssd_scan_forward(in.kernel, sizes, chunks_of(sequences), scratch.kernel(),
                              {data<float>(initial), final_states == nullptr ? nullptr : data<float>(*final_states)},
                              matrix<bf16>(y.flatten(1)), data<bf16>(states), stream);
  });
  return {y, {states, scratch.steps}};
}

void ssd_scan_backward_into(const at::Tensor& grad, const SsdInputs& inputs, const SsdSaved& saved,
                            const SsdOptions& options, const PackedSequences& sequences, const SsdInputs& gradients,
                            const at::Tensor& final_states_grad) {
  const In in(inputs);
  const SsdSizes sizes = sizes_of(inputs, options, sequences);
  const Scratch scratch(sizes, inputs.x, saved.steps);
  const at::Tensor grad_rows = aligned_rows(grad);
  const Target x = Target::rows(gradients.x), B = Target::rows(gradients.B), C = Target::rows(gradients.C);
  const Target dt = Target::numbers(gradients.dt), A_log = Target::numbers(gradients.A_log),
               D = Target::numbers(gradients.D), dt_bias = Target::numbers(gradients.dt_bias);
  const kernels::SsdTensors out{matrix<bf16>(x.tensor()), matrix<bf16>(B.tensor()), matrix<bf16>(C.tensor()),
                                numbers(dt.tensor()),     numbers(A_log.tensor()),  numbers(D.tensor()),
                                numbers(dt_bias.tensor())};
  const at::Tensor final_grad = dense(final_states_grad);
  at::Tensor initial_grad;
  if (gradients.initial_states.defined()) initial_grad = leaving_states(final_grad, sizes, sequences, inputs.x);
  call_kernel(inputs.x, [&]<class T>(cudaStream_t stream) {
    kernels::ssd_scan_backward(matrix<bf16>(grad_rows), in.kernel, sizes, chunks_of(sequences),
                               data<bf16>(saved.states), scratch.kernel(),
                               {data<float>(final_grad), data<float>(initial_grad)}, out, stream);
  });
  for (const Target& target : {x, B, C, dt, A_log, D, dt_bias}) target.finish();
  if (initial_grad.defined()) gradients.initial_states.copy_(initial_grad);
}

}  // namespace braid::cuda
