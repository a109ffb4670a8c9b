#include "plan/turns.h"

#include <algorithm>

namespace braid {
namespace {

// The stage (chunk) and the microbatch of the n-th forward of a pipeline rank, counted over all its stages, if
// microbatches go through them in groups of `together`.
struct Turn {
  int chunk, microbatch;
};
Turn nth_forward(int n, int together, int vpp) {
  const int group = n / (together * vpp), within = n % (together * vpp);
  return {within / together, group * together + within % together};
}

int interleaved_warm_up(int pp, int vpp, int pp_rank, int microbatches) {
  return std::min(2 * (pp - 1 - pp_rank) + (vpp - 1) * pp, microbatches * vpp);
}

}  // namespace

std::vector<Op> one_forward_one_backward(const Stage& stage, int microbatches, int warm_up) {
  std::vector<Op> turns;
  for (int n = 0; n < microbatches + warm_up; ++n) {
    if (n < microbatches) turns.push_back({Op::Forward, stage, n});
    if (n >= warm_up) turns.push_back({Op::Backward, stage, n - warm_up});
  }
  return turns;
}

std::vector<Op> interleaved(int module, int pp, int vpp, int pp_rank, int microbatches) {
  const int warm_up = interleaved_warm_up(pp, vpp, pp_rank, microbatches), count = microbatches * vpp;
  const int together = std::min(pp, microbatches);
  const auto stage = [&](int chunk) { return Stage{module, chunk * pp + pp_rank}; };
  std::vector<Op> turns;
  for (int n = 0; n < count + warm_up; ++n) {
    const Turn forward = nth_forward(n, together, vpp), backward = nth_forward(n - warm_up, together, vpp);
    if (n < count) turns.push_back({Op::Forward, stage(forward.chunk), forward.microbatch});
    if (n >= warm_up) turns.push_back({Op::Backward, stage(vpp - 1 - backward.chunk), backward.microbatch});
  }
  return turns;
}

std::vector<Op> turns_before(const Stage& stage, const Stage& next, const std::vector<Op>& turns, int microbatches) {
  std::vector<Op> before = {{Op::Forward, stage, 0}};
  for (const Op& op : turns) {
    if (op.stage != next) continue;
    const int microbatch = op.kind == Op::Forward ? op.microbatch + 1 : op.microbatch;
    if (microbatch < microbatches) before.push_back({op.kind, stage, microbatch});
  }
  return before;
}

std::vector<Op> with_forwards_ahead(const std::vector<Op>& turns, int ahead, int microbatches) {
  std::vector<Op> earlier;
  int next = 0;
  for (const Op& op : turns) {
    if (op.kind != Op::Forward) {
      earlier.push_back(op);
      continue;
    }
    const int last = op.microbatch == 0 ? 0 : std::min(op.microbatch + ahead, microbatches - 1);
    for (; next <= last; ++next) earlier.push_back({Op::Forward, op.stage, next});
  }
  return earlier;
}

// The maximum is reached just before the chunk's first backward.
int interleaved_in_flight(int pp, int vpp, int pp_rank, int chunk, int microbatches) {
  const int together = std::min(pp, microbatches);
  const int last = interleaved_warm_up(pp, vpp, pp_rank, microbatches) + (vpp - 1 - chunk) * together;
  int held = 0;
  for (int n = 0; n <= std::min(last, microbatches * vpp - 1); ++n)
    held += nth_forward(n, together, vpp).chunk == chunk;
  return held;
}

}  // namespace braid
