// Which process ended first, as launchers tell it.
#pragma once

#include "cluster/doctor/events/findings.h"

namespace braid {

// torchrun says who ended first, srun's lines come in that order; nullptr where no one process was the first.
const WorkerExit* find_culprit(const Findings& findings);

// "failed (exitcode: 1) local_rank: 0" from two nodes: none of them is rank 0 for sure.
bool is_of_several_nodes(const WorkerExit& exit, const Findings& findings);

}  // namespace braid
