// What `braid plan calibrate` measures: operators, each at several sizes, and a training step of a small model.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/progress.h"
#include "models/decoder.h"
#include "ops/cross_entropy.h"
#include "paper/stage.h"
#include "paper/work.h"

namespace braid {

// The operators of a SmallStep with these arguments; the step itself is not built.
Works small_step_work(const std::string& pattern, std::int64_t tokens, const at::Device& device);

// On a GPU it is so small that the host needs nearly all of its time to start kernels.
class SmallStep {
 public:
  // `pattern` lists its layers as in HybridLmConfig.
  SmallStep(const std::string& pattern, std::int64_t tokens, const at::Device& device);

  at::Tensor forward() const;  // a loss, whose backward() is the rest of the step
  void run() const { forward().backward(); }

  Works work() const { return small_step_work(config_.pattern, tokens_, device_); }

 private:
  const HybridLmConfig config_;
  const std::int64_t tokens_;
  const at::Device device_;
  Progress progress_;
  const Group alone_;
  const Parallel parallel_;
  Parameters parameters_;
  const Decoder model_;
  const SequenceBatch batch_;
  at::Tensor ids_;
  CountedLabels labels_;
};

struct CalibrationCase {
  Work work;  // what `run` computes
  std::function<void()> run;
};

// On a GPU, the cases use bf16 tensors of sizes that large models have; on a CPU, small fp32 tensors. Their inputs
// share memory. Operators that this device cannot run, or lacks memory for, are left out and reported.
std::vector<CalibrationCase> calibration_cases(const at::Device& device,
                                               const std::function<void(const std::string&)>& report);

}  // namespace braid
