// Where the time of a piece of work goes: GPU kernels recorded by Kineto, or without a GPU the operators of libtorch.
#pragma once

#include <functional>
#include <string>

namespace braid {

// Runs `work`, which must have synchronized with the device when it returns, and describes it: the kernels that took
// most of the time, and the sums over kernel families. Operators are counted without those they call.
std::string kernel_table(bool on_gpu, const std::function<void()>& work);

}  // namespace braid
