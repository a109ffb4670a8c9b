#pragma once

namespace braid {

// A layer that runs again in backward needs its inner results again. It does not need its output, because backward uses
// only the output's gradient. A collective whose result is unused does not communicate in forward, and a linear map
// does not multiply. It returns uninitialised memory, and its backward does not change.
enum class Result { Needed, Unused };

}  // namespace braid
