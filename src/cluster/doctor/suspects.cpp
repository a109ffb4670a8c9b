#include "cluster/doctor/suspects.h"
#include <csignal>

namespace braid {

namespace {

// The process that ended first: torchrun names it, srun's lines are in that order. nullptr if several ended together.
const WorkerExit* find_culprit(const Findings& findings) {
  const WorkerExit* best = nullptr;
  for (const WorkerExit& exit : findings.exits) {
    if (exit.code == 0 || exit.ranks.size() != 1 || findings.survived(exit.place)) continue;
    const bool stopped = exit.was_stopped(), best_stopped = best && best->was_stopped();
    // MPICH lists all processes by their rank: the process that crashed, and those that it then killed.
    const bool is_crash_beside_kill =
        best && exit.root && best->signal() == SIGKILL && exit.was_killed() && exit.signal() != SIGKILL;
    if (!best || (best_stopped && !stopped) || is_crash_beside_kill ||
        (stopped == best_stopped && exit.root && best->local))
      best = &exit;
  }
  // If several tasks ended together before it, it was not the first.
  const bool is_late = best && findings.find_exit([&](const WorkerExit& e) {
    return e.ranks.size() > 1 && e.failed() && earlier(e.place, best->place);
  });
  return is_late ? nullptr : best;
}

bool is_strong_cause(const Finding& finding) {
  const bool has_reason = !finding.is(Sign::NativeCrash) || reports_dead_loader(finding.text);
  return finding.role() == Role::Cause && has_reason && !finding.bare;
}

bool reports_lost_process(const Finding& finding) {
  const std::string low = in_small_letters(finding.text.substr(0, 400));
  // "Ran out of input" is pickle's EOFError: a file is empty.
  return finding.is(Sign::PythonError) && !has(low, "ran out of input") &&
         (says(low, "lost-process") || (has_whole(low, words_of("process")) && says(low, "ended")));
}

// Whether a start that failed succeeded later: a pod that waited for its node, or a command that a script does not
// need.
bool recovered_later(const Finding& wait, const Findings& findings) {
  const bool is_beside = wait.bare && !says(wait.text, "needed-programs");
  if (!wait.is(Sign::NotLaunched, Sign::ShellError) || (!is_beside && !says(wait.text, "waits-for-node"))) return false;
  const auto is_later = [&](const Finding& f) {
    return f.sign != wait.sign && f.role() <= Role::Consequence && earlier(wait.place, f.place);
  };
  return std::ranges::any_of(findings.found, is_later) || findings.any_exit(&WorkerExit::was_killed);
}

// The line that says more than a vague one: NCCL reports in a later line what its error was, a container why it did not
// start, and an exception may say only that something failed. Shared memory that cannot be opened may be full, or be
// one file too many.
const Finding* told_nearby(const Suspects& all, const Finding& vague) {
  constexpr std::uint64_t kLinesAround = 16;
  if (vague.is(Sign::PythonError) && (has(vague.text, "NCCL|nccl") || says(vague.text, "unspecific"))) {
    const Finding* const cause = all.earliest(
        [](const Finding& f) { return f.role() == Role::Cause && !f.is(Sign::PythonError, Sign::NativeCrash); });
    // A lost network is left to diagnose_time_out().
    return cause || (all.first(Sign::NetworkTrouble) && !has(vague.text, "NCCL|nccl")) ? cause : &vague;
  }
  const bool by_container = vague.is(Sign::NotLaunched) && has(vague.text, "pyxis|spank");
  const bool by_shared_memory = vague.is(Sign::SharedMemory);
  const bool says_nothing = vague.text == "MemoryError:" || says(vague.text, "says-nothing");
  if (!says_nothing && !by_container && !by_shared_memory) return &vague;
  const Finding* const told = all.earliest([&](const Finding& f) {
    const bool is_other = by_shared_memory ? f.is(Sign::TooManyFiles) : f.sign != vague.sign;
    return is_strong_cause(f) && is_other && (f.rank == vague.rank || !f.rank) && f.place.file == vague.place.file &&
           f.place.line <= vague.place.line + kLinesAround;
  });
  return told ? told : &vague;
}

// Launchers end the other ranks when one has failed, and lines of different ranks come in any order: a SIGTERM explains
// what its own rank raised after it, and that processes are gone, but not why another rank failed.
bool is_explained_from_outside(const Suspects& all, const Finding& cause) {
  const auto rank = cause.rank ? cause.rank : all.culprit_rank();
  const bool is_loss = reports_lost_process(cause);
  const bool all_told = (!rank || !all.findings.has_room(Sign::TerminatedFromOutside)) && all.last_signal &&
                        earlier(all.last_signal->place, cause.place);
  return std::ranges::any_of(all.outside, [&](const Finding* end) {
    return (!end->rank || is_loss || all_told || end->rank == rank) && earlier(end->place, cause.place);
  });
}

bool is_explained_by_others(const Suspects& all, const Finding& cause) {
  // The parent and the children of a killed process raise exceptions of their own.
  const bool follows_kill = all.findings.find_exit([&](const WorkerExit& e) {
    return e.root && e.was_killed() && e.signal() != SIGABRT && earlier(e.place, cause.place);
  });
  if (cause.is(Sign::PythonError) && cause.traceback && follows_kill) return true;
  if (!reports_lost_process(cause)) return false;
  // If a rank lost a process, the ranks that wait for it time out and abort.
  const Finding* const hang = all.first_time_out();
  const auto follows_hang = [&](const Place& end) {
    return hang && earlier(cause.place, hang->place) && earlier(hang->place, end);
  };
  return all.findings.find_exit([&](const WorkerExit& e) { return e.was_killed() && !follows_hang(e.place); }) ||
         all.earliest([&](const Finding& f) {
           return f.is(Sign::CgroupOom, Sign::NodeFailure, Sign::Preempted) ||
                  (f.is(Sign::NativeCrash) && !follows_hang(f.place)) || (f.is_wait() && earlier(f.place, cause.place));
         });
}

}  // namespace

Suspects::Suspects(const Findings& all) : findings(all), culprit(find_culprit(all)) {
  for (const Finding& f : findings.found) {
    const bool is_beside_the_run = f.is(Sign::NotLaunched) && f.bare && f.place.progress > 0;
    if (!findings.survived(f.place) && !recovered_later(f, findings) && !is_beside_the_run) live.push_back(&f);
  }
  for (const Finding* f : live)
    if (f->is_wait() && f->rank) complained.insert(*f->rank);
  braid = first(Sign::BraidRootCause);
  find_ends_from_outside();
}

std::optional<int> Suspects::rank_of(const WorkerExit& exit) const {
  const bool is_of_several_nodes =
      exit.node && findings.any_exit([&](const WorkerExit& e) { return e.node && e.node != exit.node; });
  return is_of_several_nodes ? std::nullopt : std::optional(exit.ranks[0]);
}

std::optional<int> Suspects::culprit_rank() const {
  if (braid) return braid->rank;
  return culprit && !culprit->was_stopped() ? rank_of(*culprit) : std::nullopt;
}

std::optional<Place> Suspects::first_failure() const {
  const Finding* const failure = earliest([](const Finding& f) {
    return f.is(Sign::NetworkTrouble, Sign::RendezvousFailed, Sign::NativeCrash) ||
           (f.is(Sign::ConnectionLost) && !has(f.text, "aylet|Actor|worker died"));
  });
  std::optional<Place> first = failure ? std::optional(failure->place) : std::nullopt;
  for (const WorkerExit& exit : findings.exits)
    if (exit.was_killed() && !findings.survived(exit.place) && (!first || earlier(exit.place, *first)))
      first = exit.place;
  return first;
}

const Finding* Suspects::likely_cause() const {
  const Finding* strong = nullptr;
  if (const auto rank = culprit_rank())
    strong = earliest([&](const Finding& f) { return is_strong_cause(f) && f.rank == rank; });
  if (!strong)
    strong = earliest([&](const Finding& f) { return is_strong_cause(f) && !is_explained_from_outside(*this, f); });
  if (strong) return told_nearby(*this, *strong);
  const Finding* weak = earliest([](const Finding& f) { return f.bare && !f.traceback && !f.is(Sign::PythonError); });
  if (!weak) weak = earliest([](const Finding& f) { return f.bare; });
  if (!weak) return nullptr;
  const bool is_of_driver = weak->is(Sign::PythonError) && first(Sign::NativeCrash);  // which lost a process
  const bool is_from_outside =
      weak->is(Sign::KilledByShell) && earliest([](const Finding& f) { return f.role() == Role::Outside; });
  return is_of_driver || is_from_outside || failed_before(weak->place) ? nullptr : weak;
}

const Finding* Suspects::best_cause() const {
  const Finding* const cause = likely_cause();
  const bool is_explained =
      cause && (is_explained_from_outside(*this, *cause) || is_explained_by_others(*this, *cause));
  return is_explained ? nullptr : cause;
}

bool Suspects::came_while_saving(const Finding& finding) const {
  const auto& saving = findings.file_of(finding.place).saving;
  return (saving && saving->progress == finding.place.progress) || finding.raised("saving");
}

void Suspects::find_ends_from_outside() {
  std::map<int, const Finding*> told;  // by rank, its first SIGTERM
  for (const Finding* f : live) {
    if (f->role() != Role::Outside || f->is(Sign::StepCancelled, Sign::Interrupted)) continue;
    outside.push_back(f);
    if (f->is(Sign::TerminatedFromOutside) && f->rank) told.try_emplace(*f->rank, f);
  }
  const int highest = findings.ranks.empty() ? 0 : findings.ranks.rbegin()->first;
  const auto world = std::max<std::int64_t>(findings.fact("world"), highest + 1);
  // There may be more ranks than findings are kept for.
  if (std::ssize(told) < world && findings.has_room(Sign::TerminatedFromOutside)) return;
  for (const auto& [rank, first] : told)
    if (!last_signal || earlier(last_signal->place, first->place)) last_signal = first;
}

Cause Suspects::refined(const Finding& cause) const {
  const bool has_experts = cause.raised("experts") || findings.fact("experts") > 1;
  const bool in_data = reports_dead_loader(cause.text) || cause.raised("data");
  const auto is_own_server = [&](const Finding& f) {  // as the last exception of several tells
    return f.raised("servers") && f.rank == cause.rank && f.sign == cause.sign;
  };
  const auto waited = [&](const Finding& f) { return f.is_wait() && (f.rank != cause.rank || !f.rank); };
  if (hardware_behind(cause)) return Cause::NodeFailure;
  if (cause.is(Sign::GpuOom) && has_experts) return Cause::MoeOom;
  if (cause.text.starts_with("braid: cannot run ")) return Cause::NotLaunched;
  if (cause.is(Sign::HubUnreachable) && earliest(is_own_server)) return Cause::PythonError;
  // An image that is missing on one node only: then the tasks of the others were stopped.
  if (cause.is(Sign::ImageMissing) && first(Sign::StepCancelled)) return Cause::ContainerCacheNotShared;
  if (cause.is(Sign::WeightsDiffer) && findings.fp8) return Cause::Fp8RoundtripMismatch;
  return cause.is(Sign::PythonError) && in_data && earliest(waited) ? Cause::DataRankCascade : cause_of(cause.sign);
}

}  // namespace braid
