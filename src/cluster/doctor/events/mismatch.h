// Ranks that called different collectives at one sequence number of a group.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/doctor/events/findings.h"

namespace braid {

// "[PG ID 0 PG GUID 0(default_pg) Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77,
// OpType=ALLREDUCE, NumelIn=1024, ...)"
std::optional<CollectiveWork> parse_work(std::string_view body, std::optional<int> rank);

struct Mismatch {
  std::string text;                          // who called what
  std::optional<int> odd_rank;               // the only one that called something else than the rest
  std::vector<const CollectiveWork*> works;  // one of each kind
};
std::optional<Mismatch> find_mismatch(const Findings& findings);

// PyTorch's own check names two ranks: "Rank 0 is running collective: X, but Rank 1 is running collective: Y".
std::string mismatch_told_in(std::string_view message);

}  // namespace braid
