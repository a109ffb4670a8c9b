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

std::vector<Round> one_forward_one_backward(const Stage& stage, int microbatches, int warm_up) {
  std::vector<Round> rounds;
  for (int n = 0; n < microbatches + warm_up; ++n) {
    if (n < microbatches) rounds.push_back({{Op::Forward, stage, n}});
    if (n >= warm_up) rounds.push_back({{Op::Backward, stage, n - warm_up}});
  }
  return rounds;
}

std::vector<Round> interleaved(int module, int pp, int vpp, int pp_rank, int microbatches) {
  const int warm_up = interleaved_warm_up(pp, vpp, pp_rank, microbatches), count = microbatches * vpp;
  const int together = std::min(pp, microbatches);
  const auto stage = [&](int chunk) { return Stage{module, chunk * pp + pp_rank}; };
  std::vector<Round> rounds;
  for (int n = 0; n < count + warm_up; ++n) {
    const Turn forward = nth_forward(n, together, vpp), backward = nth_forward(n - warm_up, together, vpp);
    Round& round = rounds.emplace_back();
    if (n < count) round.push_back({Op::Forward, stage(forward.chunk), forward.microbatch});
    if (n >= warm_up) round.push_back({Op::Backward, stage(vpp - 1 - backward.chunk), backward.microbatch});
  }
  return rounds;
}

std::vector<Round> rounds_before(const Stage& stage, const Stage& next, const std::vector<Round>& rounds,
                                 int microbatches) {
  std::vector<Round> before = {{{Op::Forward, stage, 0}}};
  for (const Round& round : rounds) {
    Round own;
    for (const Op& op : round) {
      if (op.stage != next) continue;
      const int microbatch = op.kind == Op::Forward ? op.microbatch + 1 : op.microbatch;
      if (microbatch < microbatches) own.push_back({op.kind, stage, microbatch});
    }
    if (!own.empty()) before.push_back(std::move(own));
  }
  return before;
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
