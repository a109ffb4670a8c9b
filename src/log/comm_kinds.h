// What a rank communicates for: the columns of the log's communication lines.
#pragma once

#include <array>
#include <cstddef>

#include "dist/comm_times.h"

namespace braid {

enum class CommKind { Bridge, Pipeline, Gradients, Parameters, Tensor, Context, Expert, Batches, Other };
inline constexpr std::size_t kCommKinds = 9;

const char* name_of(CommKind kind);  // "bridge"; those of groups inside layers are the groups' names: "tp"

// Purposes of operations of the world's group, which its name does not tell.
inline constexpr const char* kForBridge = "bridge";
inline constexpr const char* kForPipeline = "pipeline";
inline constexpr const char* kForEvaluation = "evaluation";

CommKind kind_of(const CommKey& key);

using CommReport = std::array<CommTotals, kCommKinds>;  // per iteration, by CommKind
CommReport report_of(const CommLedger& ledger, int iterations);

}  // namespace braid
