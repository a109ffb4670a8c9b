// What may have ended a run: the findings that it did not outlive, and which of them is the cause.
#pragma once

#include "cluster/doctor/findings.h"
#include "cluster/doctor/rules.h"

namespace braid {

// Ranks that called different collectives at one sequence number of a group.
struct Mismatch {
  std::string text;                          // who called what
  std::optional<int> odd_rank;               // the only one that called something else than the rest
  std::vector<const CollectiveWork*> works;  // one of each kind
};
std::optional<Mismatch> find_mismatch(const Findings& findings);

struct Silence {
  std::optional<int> rank;
  std::string how;                 // how it is known, as a clause
  std::optional<Quote> line = {};  // the line that shows it
};

// `complained`: the ranks whose own lines are time-outs or lost connections.
Silence find_silent_rank(const Findings& findings, const std::set<int>& complained);

inline bool is_time_out(const Finding& finding) {
  return finding.is(Sign::CollectiveTimeout, Sign::UniqueIdTimeout, Sign::StoreTimeout);
}

struct Suspects {
  explicit Suspects(const Findings& findings);

  // The rank that a launcher names; of two nodes' "failed (exitcode: 1) local_rank: 0", neither is certainly rank 0.
  std::optional<int> rank_of(const WorkerExit& exit) const;
  std::optional<int> culprit_rank() const;

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
  const Finding* best_cause() const;

  // Whether a process crashed or was killed, or ranks could not meet or lost each other, without a known reason.
  std::optional<Place> first_failure() const;
  bool failed_before(const Place& place) const {
    const auto failure = first_failure();
    return failure && earlier(*failure, place);
  }

  // The ranks of a job may report lost peers up to a minute before Slurm logs that the job's time is over.
  bool is_limit_logged_late(const Finding& end) const;

  // Whether it happened during or right after the saving of a checkpoint or the export of a model.
  bool came_while_saving(const Finding& finding) const;

  // Whether others lost a process that ended, or that Ray reports as lost.
  bool is_loss_of_worker(const Finding& lost) const;

  // Whether an end from outside came before, which makes programs raise all kinds of exceptions.
  bool is_explained_from_outside(const Finding& cause) const;

  // Whether it only reports that a process is gone, and other lines say why.
  bool is_explained_by_others(const Finding& cause) const;

  // The kernel's message about a GPU whose user only sees a CUDA error.
  const Finding* hardware_behind(const Finding& cause) const {
    return cause.is(Sign::CudaError) ? first(Sign::Hardware) : nullptr;
  }

  // The cause that the finding means, given all other findings.
  Cause refined(const Finding& cause) const;

  const Findings& findings;
  std::vector<const Finding*> live;
  std::set<int> complained;             // ranks that timed out or lost a peer
  const WorkerExit* culprit = nullptr;  // the process that a launcher saw end first
  const RootCauseLine* braid = nullptr;

 private:
  void find_ends_from_outside();
  const Finding* told_nearby(const Finding& vague) const;
  // There may be more ranks than findings are kept for.
  bool more_were_told() const { return !findings.has_room(Sign::TerminatedFromOutside); }

  std::vector<const Finding*> outside_;   // ends that may explain exceptions
  const Finding* last_signal_ = nullptr;  // the last SIGTERM, if all ranks got one
};

}  // namespace braid
