// What `braid plan calibrate` measures: operators, each at several sizes, and a training step of a small model.
#pragma once

#include <ATen/core/Tensor.h>
#include "paper/work.h"

namespace braid {

// A training step of a small model: its forward, which returns a loss; backward() of that is the rest of the step. On a
// GPU it is so small that the host needs nearly all of its time to start kernels. `pattern` lists the layers as in
// HybridLmConfig.
using SmallStep = std::function<at::Tensor()>;
SmallStep small_step(const std::string& pattern, std::int64_t tokens, const at::Device& device);
Works small_step_work(const std::string& pattern, std::int64_t tokens, const at::Device& device);  // its operators

struct CalibrationCase {
  Work work;  // what `run` computes
  std::function<void()> run;
};

// On a GPU, the cases use bf16 tensors of sizes that large models have; on a CPU, small fp32 tensors. Their inputs
// share memory. Operators that this device cannot run, or lacks memory for, are left out and reported.
std::vector<CalibrationCase> calibration_cases(const at::Device& device,
                                               const std::function<void(const std::string&)>& report);

}  // namespace braid
