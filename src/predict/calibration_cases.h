// The operators that `braid plan calibrate` measures, each at several sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "paper/stage.h"

namespace braid {

struct CalibrationCase {
  Work work;  // what `run` computes
  std::function<void()> run;
};

// On a GPU, the cases use bf16 tensors of sizes that large models have; on a CPU, small fp32 tensors. Their inputs
// share memory, because results are not used. Operators that this device cannot run, or lacks memory for, are left out
// and reported.
std::vector<CalibrationCase> calibration_cases(const at::Device& device,
                                               const std::function<void(const std::string&)>& report);

}  // namespace braid
