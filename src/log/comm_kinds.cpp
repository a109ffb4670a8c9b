#include "log/comm_kinds.h"

#include <map>
#include <string>

namespace braid {

const char* name_of(CommKind kind) {
  static constexpr std::array<const char*, kCommKinds> names = {"bridge", "pipeline", "gradients", "parameters", "tp",
                                                                "cp",     "ep",       "batches",   "other"};
  return names[static_cast<std::size_t>(kind)];
}

CommKind kind_of(const CommKey& key) {
  if (key.purpose == kForEvaluation) return CommKind::Other;
  const std::string over = key.group.substr(key.group.find('.') + 1);  // "language.dp-cp" -> "dp-cp"
  if (over.starts_with("embedding")) return CommKind::Bridge;          // channels, see plan/channels.h
  if (over.starts_with("activation")) return CommKind::Pipeline;
  if (over == "dp-cp" || over == "expt_dp") return key.op == "all_gather" ? CommKind::Parameters : CommKind::Gradients;
  static const std::map<std::string, CommKind> kinds = {{"tp", CommKind::Tensor},
                                                        {"cp", CommKind::Context},
                                                        {"ep", CommKind::Expert},
                                                        {"expt_tp", CommKind::Expert},
                                                        {"pp-cp-tp", CommKind::Batches}};
  const auto kind = kinds.find(over);
  return kind == kinds.end() ? CommKind::Other : kind->second;
}

CommReport report_of(const CommLedger& ledger, int iterations) {
  std::array<CommUse, kCommKinds> uses;
  for (const auto& [key, use] : ledger) uses[static_cast<std::size_t>(kind_of(key))] += use;
  CommReport report;
  for (std::size_t i = 0; i < kCommKinds; ++i)
    report[i] = {uses[i].bytes / iterations, uses[i].in_flight.ms() / iterations, uses[i].exposed.ms() / iterations};
  return report;
}

}  // namespace braid
