// Where the time of a piece of work goes: GPU kernels recorded by Kineto, or without a GPU the operators of libtorch.
#pragma once

namespace braid {

// Runs `step`, which must have synchronized with the device when it returns, `steps` times in a row, and describes the
// mean step: the kernels that took most of the time, and the sums over kernel families. Several steps heat the GPU as
// training does, and its clock falls. Operators are counted without those they call.
std::string kernel_table(bool on_gpu, int steps, const std::function<void()>& step);

}  // namespace braid
