// What a run requests of a Slurm cluster; options of `braid launch slurm` take precedence over it.
#pragma once

#include "base/config.h"

namespace braid {

struct ClusterConfig {
  int gpus_per_node = 8;
  std::string time = "00:30:00";  // wall time of one job
  bool requeue = false;           // save shortly before the time limit, then requeue and resume
};

void describe(Fields& fields, ClusterConfig& config);
std::vector<Problem> validate(const ClusterConfig& config);  // keys as in a recipe's section "cluster"

// Slurm's time limits: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S, and UNLIMITED. Nothing for other text and for zero.
std::optional<std::chrono::seconds> parse_wall_time(std::string_view text);

}  // namespace braid
