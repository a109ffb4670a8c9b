#include "cluster/doctor/suspects.h"

#include <fmt/format.h>

#include <csignal>

#include "base/strings.h"

namespace braid {

std::optional<Mismatch> find_mismatch(const Findings& findings) {
  std::map<std::pair<std::string, std::int64_t>, std::map<std::string, std::vector<const CollectiveWork*>>> calls;
  for (const auto& [key, work] : findings.works)
    if (!work.operation.empty() && !findings.survived(work.place))
      calls[{work.group, work.queued}][work.operation].push_back(&work);
  for (const auto& [at, by_operation] : calls) {
    if (by_operation.size() < 2) continue;
    Mismatch mismatch;
    std::size_t odd = 0;
    for (const auto& [operation, works] : by_operation) {
      std::vector<int> ranks;
      for (const CollectiveWork* work : works) ranks.push_back(work->rank);
      mismatch.text += fmt::format("{}rank{} {} called {}", mismatch.text.empty() ? "" : ", ",
                                   ranks.size() > 1 ? "s" : "", fold_ranks(ranks), operation);
      mismatch.works.push_back(works.front());
      if (ranks.size() == 1) mismatch.odd_rank = ranks[0], ++odd;
    }
    if (odd != 1) mismatch.odd_rank.reset();
    // Groups of one name may have different sizes, as those of pipeline stages: then no single rank is odd.
    const auto kind = [](const auto& entry) { return entry.first.substr(0, entry.first.find(' ')); };
    if (!mismatch.odd_rank && kind(*by_operation.begin()) == kind(*by_operation.rbegin())) continue;
    mismatch.text = fmt::format("At sequence number {} {}.", at.second, mismatch.text);
    return mismatch;
  }
  return std::nullopt;
}

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

// Every rank that the log mentions, or that the size of the world implies.
std::set<int> known_ranks(const Findings& findings) {
  std::int64_t ranks = std::min<std::int64_t>(findings.world_size.value_or(0), 1 << 16);
  if (!findings.ranks.empty()) ranks = std::max<std::int64_t>(ranks, findings.ranks.rbegin()->first + 1);
  for (const Finding& finding : findings.found) ranks = std::max<std::int64_t>(ranks, finding.rank.value_or(-1) + 1);
  std::set<int> known;
  for (int rank = 0; rank < ranks; ++rank) known.insert(known.end(), rank);
  return known;
}

// Watchdogs report how many collectives their ranks had queued, or in which one they wait. Ranks that queued the fewest
// in their group are behind, if they are the smaller part of it and had not queued what the others wait in. Several
// groups may stall; the first one that timed out counts.
Silence rank_behind(const Findings& findings) {
  const auto is_queue = [](const auto& entry) { return entry.second.operation.empty(); };
  const bool has_queues = std::ranges::any_of(findings.works, is_queue);
  std::map<std::string, std::vector<const CollectiveWork*>> groups;
  for (const auto& entry : findings.works)
    if (is_queue(entry) == has_queues) groups[entry.second.group].push_back(&entry.second);
  Silence best;
  for (const auto& [name, works] : groups) {
    const CollectiveWork& least = **std::ranges::min_element(works, {}, &CollectiveWork::queued);
    std::vector<int> behind;
    bool others_wait = true;
    for (const CollectiveWork* work : works)
      if (work->queued == least.queued)
        behind.push_back(work->rank);
      else
        others_wait &= work->completed >= least.queued;
    if (!others_wait || 2 * behind.size() >= works.size() || (best.line && !earlier(least.place, best.line->place)))
      continue;
    best = {
        behind.front(),
        fmt::format("{} had queued fewer collectives than the others of {} group",
                    (behind.size() > 1 ? "ranks " : "rank ") + fold_ranks(behind), behind.size() > 1 ? "their" : "its"),
        least};
  }
  return best;
}

}  // namespace

Silence find_silent_rank(const Findings& findings, const std::set<int>& complained) {
  if (!findings.named_absent.empty()) {
    std::map<int, int> named;
    for (const Finding& absent : findings.named_absent) ++named[*absent.rank];
    const int most = std::ranges::max_element(named, {}, [](const auto& entry) { return entry.second; })->first;
    return {most, fmt::format("the other ranks report that rank {} did not arrive", most),
            *std::ranges::find(findings.named_absent, most, &Finding::rank)};
  }
  if (complained.empty()) return {};
  if (Silence behind = rank_behind(findings); behind.rank) return behind;
  std::vector<int> silent;
  std::ranges::set_difference(known_ranks(findings), complained, std::back_inserter(silent));
  // A rank that never printed a line is only remarkable if all others printed some.
  std::optional<int> first;
  for (const int rank : silent)
    if (const auto trace = findings.ranks.find(rank); trace != findings.ranks.end())
      if (!first || earlier(trace->second.last, findings.ranks.at(*first).last)) first = rank;
  if (silent.size() == 1 && (first || findings.world_size || complained.size() > 1))
    return {silent[0], fmt::format("rank {} is the only one that reported nothing", silent[0])};
  if (!first || silent.size() == 1 || silent.size() >= complained.size()) return {};
  return {first, fmt::format("of the ranks that reported nothing ({}), rank {} became silent first", fold_ranks(silent),
                             *first)};
}

namespace {

// "worker 3 (pid 4711) has died": whether one of the events stands near one of the things. The thing is a whole word,
// maybe in the plural: "process" or "processes", but not "processing", "process_group" or a part of a name.
bool says_near(std::string_view text, const std::string& things, std::string_view events) {
  constexpr std::size_t kNearBytes = 60;
  for (const std::string& thing : split(things, '|'))
    for (std::size_t at = 0; (at = text.find(thing, at)) != npos; ++at) {
      const std::string_view near = text.substr(at - std::min(at, kNearBytes)), rest = text.substr(at);
      const bool is_whole =
          has_whole(text.substr(at - (at > 0), thing.size() + 3), thing + "|" + thing + "s|" + thing + "es");
      if (is_whole && has(near.substr(0, near.size() - rest.size() + thing.size() + kNearBytes), events)) return true;
    }
  return false;
}

bool is_strong_cause(const Finding& finding) {
  const bool has_reason = !finding.is(Sign::NativeCrash) || reports_dead_loader(finding.text);
  return finding.role() == Role::Cause && has_reason && !finding.bare;
}

bool reports_lost_process(const Finding& finding) {
  const std::string low = in_small_letters(finding.text);
  // "Ran out of input" is pickle's EOFError: a file is empty.
  return finding.is(Sign::PythonError) && !has(low, "ran out of input") &&
         (says(low, "lost-process") || says_near(low, words_of("process"), words_of("ended")));
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

}  // namespace

Suspects::Suspects(const Findings& all) : findings(all), culprit(find_culprit(all)) {
  for (const Finding& f : findings.found) {
    const bool is_beside_the_run = f.is(Sign::NotLaunched) && f.bare && f.place.progress > 0;
    if (!findings.survived(f.place) && !recovered_later(f, findings) && !is_beside_the_run) live.push_back(&f);
  }
  for (const Finding* f : live)
    if (f->is_wait() && f->rank) complained.insert(*f->rank);
  const auto line = std::ranges::find_if(findings.braid, [&](auto& cause) { return !findings.survived(cause.place); });
  if (line != findings.braid.end()) braid = &*line;
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

const Finding* Suspects::best_cause() const {
  const Finding* strong = nullptr;
  if (const auto rank = culprit_rank())
    strong = earliest([&](const Finding& f) { return is_strong_cause(f) && f.rank == rank; });
  if (!strong) strong = earliest([&](const Finding& f) { return is_strong_cause(f) && !is_explained_from_outside(f); });
  if (strong) return told_nearby(*strong);
  const Finding* weak = earliest([](const Finding& f) { return f.bare && !f.traceback && !f.is(Sign::PythonError); });
  if (!weak) weak = earliest([](const Finding& f) { return f.bare; });
  if (!weak) return nullptr;
  const bool is_of_driver = weak->is(Sign::PythonError) && first(Sign::NativeCrash);  // which lost a process
  const bool is_from_outside =
      weak->is(Sign::KilledByShell) && earliest([](const Finding& f) { return f.role() == Role::Outside; });
  return is_of_driver || is_from_outside || failed_before(weak->place) ? nullptr : weak;
}

bool Suspects::is_limit_logged_late(const Finding& end) const {
  constexpr double kLate = 60;  // seconds; a job that failed earlier waits longer for its end
  const auto failure = first_failure();
  return end.is(Sign::TimeLimit) && failure && failure->time && end.place.time &&
         seconds_between(*failure->time, *end.place.time) < kLate;
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

// The line that says more than a vague one: NCCL reports in a later line what its error was, a container why it did not
// start, and an exception may say only that something failed. Shared memory that cannot be opened may be full, or be
// one file too many.
const Finding* Suspects::told_nearby(const Finding& vague) const {
  constexpr std::uint64_t kLinesAround = 16;
  const auto or_vague = [&](const Finding* told) { return told ? told : &vague; };
  const bool is_exception = vague.is(Sign::PythonError), by_shared_memory = vague.is(Sign::SharedMemory);
  if (is_exception && has(vague.text, "NCCL|nccl"))
    return or_vague(earliest([](const Finding& f) { return is_strong_cause(f) && !f.is(Sign::PythonError); }));
  if (is_exception && says(vague.text, "unspecific")) {
    const Finding* const cause = earliest(
        [](const Finding& f) { return f.role() == Role::Cause && !f.is(Sign::PythonError, Sign::NativeCrash); });
    return cause || first(Sign::NetworkTrouble) ? cause : &vague;  // a lost network is left to diagnose_time_out()
  }
  const bool by_container = vague.is(Sign::NotLaunched) && has(vague.text, "pyxis|spank");
  const bool says_nothing = vague.text == "MemoryError:" || says(vague.text, "says-nothing");
  if (!says_nothing && !by_container && !by_shared_memory) return &vague;
  return or_vague(earliest([&](const Finding& f) {
    const bool is_other = by_shared_memory ? f.is(Sign::TooManyFiles) : f.sign != vague.sign;
    return is_strong_cause(f) && is_other && (f.rank == vague.rank || !f.rank) && f.place.file == vague.place.file &&
           f.place.line <= vague.place.line + kLinesAround;
  }));
}

bool Suspects::came_while_saving(const Finding& finding) const {
  const auto& saving = findings.file_of(finding.place).saving;
  return (saving && saving->progress == finding.place.progress) || finding.raised("saving");
}

bool Suspects::is_loss_of_worker(const Finding& lost) const {
  if (has(lost.text, "Actor|A worker died|WorkerCrashed")) return true;
  const Finding* const cut = first(Sign::StepCancelled, Sign::JobCancelled);
  const bool is_only_one = std::ranges::all_of(findings.exits, [&](const WorkerExit& e) {
    return e.ranks.empty() || e.ranks == findings.exits.front().ranks;  // what has no rank is the whole job
  });
  return findings.find_exit([&](const WorkerExit& e) {
    const bool waited = std::ranges::all_of(e.ranks, [&](int rank) { return complained.contains(rank); });
    const auto signal = e.signal();  // who loses the others aborts
    const bool is_whole_job = e.ranks.empty() && (!signal || *signal == SIGABRT);
    const bool is_own = (!e.ranks.empty() && waited) || e.local || (!lost.rank && is_only_one);
    const bool is_cut = cut && signal == SIGKILL && earlier(cut->place, e.place);
    return e.failed() && !is_own && !is_whole_job && !is_cut;
  });
}

void Suspects::find_ends_from_outside() {
  std::map<int, const Finding*> told;  // by rank, its first SIGTERM
  for (const Finding* f : live) {
    if (f->role() != Role::Outside || f->is(Sign::StepCancelled, Sign::Interrupted)) continue;
    outside_.push_back(f);
    if (f->is(Sign::TerminatedFromOutside) && f->rank) told.try_emplace(*f->rank, f);
  }
  const int highest = findings.ranks.empty() ? 0 : findings.ranks.rbegin()->first;
  const auto world = std::max<std::int64_t>(findings.world_size.value_or(0), highest + 1);
  if (std::ssize(told) < world && !more_were_told()) return;
  for (const auto& [rank, first] : told)
    if (!last_signal_ || earlier(last_signal_->place, first->place)) last_signal_ = first;
}

// Launchers end the other ranks when one has failed, and lines of different ranks come in any order: a SIGTERM explains
// what its own rank raised after it, and that processes are gone, but not why another rank failed.
bool Suspects::is_explained_from_outside(const Finding& cause) const {
  const auto rank = cause.rank ? cause.rank : culprit_rank();
  const bool is_loss = reports_lost_process(cause);
  const bool all_told = (!rank || more_were_told()) && last_signal_ && earlier(last_signal_->place, cause.place);
  return std::ranges::any_of(outside_, [&](const Finding* end) {
    return (!end->rank || is_loss || all_told || end->rank == rank) && earlier(end->place, cause.place);
  });
}

bool Suspects::is_explained_by_others(const Finding& cause) const {
  // The parent and the children of a killed process raise exceptions of their own.
  const bool follows_kill = findings.find_exit([&](const WorkerExit& e) {
    return e.root && e.was_killed() && e.signal() != SIGABRT && earlier(e.place, cause.place);
  });
  if (cause.is(Sign::PythonError) && cause.traceback && follows_kill) return true;
  if (!reports_lost_process(cause)) return false;
  // If a rank lost a process, the ranks that wait for it time out and abort.
  const Finding* const hang = first_time_out();
  const auto follows_hang = [&](const Place& end) {
    return hang && earlier(cause.place, hang->place) && earlier(hang->place, end);
  };
  return findings.find_exit([&](const WorkerExit& e) { return e.was_killed() && !follows_hang(e.place); }) ||
         earliest([&](const Finding& f) {
           return f.is(Sign::CgroupOom, Sign::NodeFailure, Sign::Preempted) ||
                  (f.is(Sign::NativeCrash) && !follows_hang(f.place)) || (f.is_wait() && earlier(f.place, cause.place));
         });
}

Cause Suspects::refined(const Finding& cause) const {
  const bool has_experts = cause.raised("experts") || findings.num_experts.value_or(0) > 1;
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
