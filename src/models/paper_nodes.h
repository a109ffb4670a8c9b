// What the sources of models/paper_ops.h share.
#pragma once

#include "models/paper_tape.h"

namespace braid::paper {

inline constexpr std::int64_t kIndex = 8, kFloat = 4;  // bytes of an int64 and of an fp32 number

inline std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

// What a node keeps of its inputs is captured whole; of the others it knows only where their gradients go.
inline PaperTensor target(const PaperTensor& x) { return x.without_memory(); }

template <class... Memory>
void keep(const Memory&...) {}  // names what a closure has captured only to keep it

}  // namespace braid::paper
