// The purposes of a rank's communication, which are the columns of the log's communication lines.
#pragma once

#include <array>
#include <cstddef>

#include "comm/comm_times.h"

namespace braid {

enum class CommKind { Bridge, Pipeline, Gradients, Parameters, Tensor, Context, Expert, Batches, Other };
inline constexpr std::size_t kCommKinds = 9;

const char* name_of(CommKind kind);  // "bridge"; for groups inside layers, the group's name: "tp"

// The purpose of all operations outside of training steps, whatever their group.
inline constexpr const char* kForEvaluation = "evaluation";

CommKind kind_of(const CommKey& key);

using CommReport = std::array<CommTotals, kCommKinds>;  // per iteration, by CommKind
CommReport report_of(const CommLedger& ledger, int iterations);

}  // namespace braid
