// Where ranks wait for each other in a schedule: which ranks take part in an op, and how many of them have arrived.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "plan/op.h"

namespace braid {

class Meetings {
 public:
  struct Meeting {
    int came = 0;     // ranks that have arrived
    double last = 0;  // when the last of them did
  };

  Meetings(const Topology& topology, int microbatches);

  // The ranks that take part in an op of `rank`, which must meet for it. The ranks of a replica share media when they
  // load them; text they already have. A gather or reduction involves all ranks of its stage; parameters arrive on each
  // rank separately, but gradients are complete only when all have added theirs.
  RankBlock ranks_at(int rank, const Op& op) const;
  Meeting& at(const Op& op, const RankBlock& ranks);  // for more than one rank
  // A number for each stage of each module.
  std::size_t number_of(const Stage& stage) const { return first_stage_[stage.module] + stage.index; }
  std::size_t stages() const { return first_.size(); }

 private:
  const Topology& topology_;
  std::vector<std::size_t> first_stage_;                    // by module
  std::vector<std::array<std::size_t, Op::kKinds>> first_;  // by stage and kind: index of the first of its meetings
  std::vector<Meeting> meetings_;                           // of a stage and kind: by microbatch and block of ranks
};

}  // namespace braid
