// What may have ended a run: the findings that it did not outlive, and which of them is the cause.
#pragma once

#include "cluster/doctor/findings.h"
#include "cluster/doctor/rules.h"

namespace braid {

inline bool is_time_out(const Finding& finding) {
  return finding.is(Sign::CollectiveTimeout, Sign::UniqueIdTimeout, Sign::StoreTimeout);
}

struct Suspects {
  explicit Suspects(const Findings& findings);

  template <class Wanted>
  const Finding* earliest(Wanted wanted) const {
    const Finding* best = nullptr;
    for (const Finding* finding : live)
      if (wanted(*finding) && (!best || earlier(finding->place, best->place))) best = finding;
    return best;
  }
  template <class... Signs>
  const Finding* first(Signs... signs) const {  // the earliest of one of these kinds
    return earliest([&](const Finding& f) { return f.is(signs...); });
  }
  const Finding* first_time_out() const { return earliest(is_time_out); }

  // The rank that a launcher names; of two nodes' "failed (exitcode: 1) local_rank: 0", neither is certainly rank 0.
  std::optional<int> rank_of(const WorkerExit& exit) const;
  std::optional<int> culprit_rank() const;

  // The error that ended the run; nullptr if there is none, or if something else explains it.
  const Finding* best_cause() const;
  // The cause that the finding means, given all other findings.
  Cause refined(const Finding& cause) const;
  // The kernel's message about a GPU whose user only sees a CUDA error.
  const Finding* hardware_behind(const Finding& cause) const {
    return cause.is(Sign::CudaError) ? first(Sign::Hardware) : nullptr;
  }

  // Where a process crashed or was killed, or ranks could not meet or lost each other, without a known reason.
  std::optional<Place> first_failure() const;
  bool failed_before(const Place& place) const {
    const auto failure = first_failure();
    return failure && earlier(*failure, place);
  }

  // Whether it happened during or right after the saving of a checkpoint or the export of a model.
  bool came_while_saving(const Finding& finding) const;

  const Findings& findings;
  std::vector<const Finding*> live;
  std::set<int> complained;              // ranks that timed out or lost a peer
  const WorkerExit* culprit = nullptr;   // the process that a launcher saw end first
  const Finding* braid = nullptr;        // Braid's root cause line
  std::vector<const Finding*> outside;   // ends that may explain exceptions
  const Finding* last_signal = nullptr;  // the last SIGTERM, if all ranks got one

 private:
  void find_ends_from_outside();
  const Finding* likely_cause() const;
};

}  // namespace braid
