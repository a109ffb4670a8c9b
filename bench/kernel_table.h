// Where the time of a piece of work goes: GPU kernels as Kineto saw them, or without a GPU the operators of libtorch.
#pragma once

#include <functional>
#include <string>

namespace braid {

// Runs `work`, which must have synchronised with the device when it returns, and describes it: the kernels that took
// most of the time, and the sums of like kernels. Operators count without those they call.
std::string kernel_table(bool on_gpu, const std::function<void()>& work);

}  // namespace braid
