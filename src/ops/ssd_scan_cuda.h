// The SSD scan by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "ops/ssd_scan.h"

namespace braid::cuda {

// Whether kernels know the dtypes and sizes: x, B and C in bf16, the others in float or bf16.
bool has_ssd_scan(const SsdInputs& inputs);

OutputAndSaved<SsdSaved> ssd_scan_forward(const SsdInputs& inputs, const SsdOptions& options,
                                          const PackedSequences& sequences, at::Tensor* final_states);
void ssd_scan_backward_into(const at::Tensor& grad, const SsdInputs& inputs, const SsdSaved& saved,
                            const SsdOptions& options, const PackedSequences& sequences, const SsdInputs& gradients,
                            const at::Tensor& final_states_grad);

}  // namespace braid::cuda
