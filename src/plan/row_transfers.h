// Which rows of a microbatch cross from an encoder's grid to the language module's. Replicas of each module hold equal
// shares of the rows in dp order, so a transfer is where two shares overlap: fan-out, one-to-one and fan-in are all
// that.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/topology.h"

namespace braid {

struct RowRange {
  std::int64_t begin, end;
};

// The share of `rows` that the replica of this rank holds.
RowRange rows_of(const Module& module, int global_rank, std::int64_t rows);

struct RowTransfer {
  int from_rank, to_rank;   // global: the first rank of each replica
  std::int64_t begin, end;  // rows of the microbatch over all language replicas
};

// Every transfer of one encoder into the language module, in an order that is the same on all ranks.
std::vector<RowTransfer> plan_row_transfers(const Module& encoder, const Module& language, std::int64_t rows);

}  // namespace braid
