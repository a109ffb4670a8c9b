// Writes the list of a rank that colocated modules share. The modules take turns. Without pipelines they change after
// every microbatch, because this holds the fewest activations; with pipelines, each module runs all its microbatches.
// All ranks exchange between modules at the same time, so that no rank waits for another's turn.
#pragma once

#include <vector>

#include "plan/rank_program.h"

namespace braid {

class SharedRankProgram {
 public:
  // `language`: the rounds of the language model's stages on this rank. All arguments must outlive it.
  SharedRankProgram(const Topology& topology, const ScheduleOptions& options, const std::vector<Edge>& edges, int rank,
                    const std::vector<Round>& language);

  std::vector<Op> write();

 private:
  Op first_forward(int microbatch) const { return {Op::Forward, first_, microbatch}; }
  Op last_backward(int microbatch) const { return {Op::Backward, first_, microbatch}; }

  void write_by_microbatch();
  void write_by_module();
  void encode(int microbatch);
  void encode_back(int microbatch);
  void cross(int microbatch);
  void cross_back(int microbatch);

  const Topology& topology_;
  const ScheduleOptions& options_;
  const std::vector<Round>& language_;
  const Stage first_;  // of the language model
  RankProgram program_;
  std::vector<Stage> encoders_;
};

}  // namespace braid
