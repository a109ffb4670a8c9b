// What a rank communicates for: the columns of the log's communication lines.
#pragma once

#include <array>
#include <cstddef>

#include "comm/comm_times.h"

namespace braid {

enum class CommKind { Bridge, Pipeline, Gradients, Parameters, Tensor, Context, Expert, Batches, Other };
inline constexpr std::size_t kCommKinds = 9;

const char* name_of(CommKind kind);  // "bridge"; those of groups inside layers are the groups' names: "tp"

// The purpose of operations that do not belong to a training step, whatever their group.
inline constexpr const char* kForEvaluation = "evaluation";

CommKind kind_of(const CommKey& key);

using CommReport = std::array<CommTotals, kCommKinds>;  // per iteration, by CommKind
CommReport report_of(const CommLedger& ledger, int iterations);

}  // namespace braid
