#pragma once

namespace braid {

// Attention's backward reads this setting; Braid's own kernels are always deterministic. Operators without a
// deterministic form may run. Uninitialized memory is not filled: that would cost a pass over each new tensor.
void set_deterministic(bool deterministic);

}  // namespace braid
