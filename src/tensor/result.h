#pragma once

namespace braid {

// A layer that runs again in backward needs its inner results again, but not its output, of which only the gradient is
// used. A collective whose result is unused does not communicate in forward: it returns uninitialised memory, and its
// backward is as always.
enum class Result { Needed, Unused };

}  // namespace braid
