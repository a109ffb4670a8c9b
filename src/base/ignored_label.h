// The label of a token that has no loss, as in PyTorch.
#pragma once

namespace braid {

inline constexpr int kIgnoredLabel = -100;

}  // namespace braid
