// What a schedule depends on besides the topology.
#pragma once

#include <string>
#include <vector>

#include "plan/pipeline.h"

namespace braid {

struct ScheduleOptions {
  int microbatches = 1;
  std::vector<std::string> frozen{};                    // modules without a backward
  std::vector<std::string> frozen_before_last_stage{};  // modules of which only the last stage has a backward
  bool forward_only = false;                            // no backward anywhere, and no update
  bool updates = true;                                  // false: no update, so no reductions and no gathers either
  bool overlap_reduce = false;                          // a stage's gradients are reduced during its last backward
  bool overlap_gather = false;                          // updated parameters arrive while the next step begins
  int prefetch = 0;  // how many finished microbatches an encoder may hold beyond what 1F1B needs
};

// Whether a stage has a backward; it then receives the gradient of the output it sends.
bool is_trained(const Topology& topology, const ScheduleOptions& options, const Stage& stage);

// Whether a step ends with an update, for which gradients are reduced and after which parameters are gathered.
bool has_update(const ScheduleOptions& options);

// Whether forwards of a stage read the microbatch besides activations: media, tokens, labels, lengths of sequences.
bool reads_batch(const Topology& topology, const Stage& stage);

}  // namespace braid
