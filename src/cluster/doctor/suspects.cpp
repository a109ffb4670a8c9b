#include "cluster/doctor/suspects.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <vector>

#include "base/strings.h"
#include "cluster/doctor/messages.h"
#include "cluster/doctor/rules.h"
#include "cluster/doctor/text.h"

namespace braid {

std::optional<Mismatch> find_mismatch(const Findings& findings) {
  std::map<std::pair<std::string, std::int64_t>, std::map<std::string, std::vector<const CollectiveWork*>>> calls;
  for (const CollectiveWork& work : findings.works)
    if (!findings.survived(work.place)) calls[{work.group, work.sequence}][work.operation].push_back(&work);
  for (const auto& [at, by_operation] : calls) {
    if (by_operation.size() < 2) continue;
    Mismatch mismatch;
    std::size_t most = 0, odd = 0;
    for (const auto& [operation, works] : by_operation) {
      std::vector<int> ranks;
      for (const CollectiveWork* work : works) ranks.push_back(work->rank);
      mismatch.text += fmt::format("{}rank{} {} called {}", mismatch.text.empty() ? "" : ", ",
                                   ranks.size() > 1 ? "s" : "", fold_ranks(ranks), operation);
      mismatch.works.push_back(works.front());
      most = std::max(most, ranks.size());
      if (ranks.size() == 1) mismatch.odd_rank = ranks[0], ++odd;
    }
    if (odd != 1 || most < 2) mismatch.odd_rank.reset();
    // Groups of one name may have different sizes, as those of pipeline stages: then no single rank is odd.
    const auto kind = [](const std::string& operation) { return operation.substr(0, operation.find(' ')); };
    const bool only_sizes = kind(by_operation.begin()->first) == kind(by_operation.rbegin()->first);
    if (only_sizes && !mismatch.odd_rank) continue;
    mismatch.text = fmt::format("At sequence number {} {}.", at.second, mismatch.text);
    return mismatch;
  }
  return std::nullopt;
}

std::string mismatch_told_in(std::string_view message) {
  const std::size_t at = message.find("Rank ");
  return at == npos ? "" : fmt::format("It says: {}", message.substr(at, 600));
}

namespace {

// MPICH lists all processes by their rank: the process that crashed, and those that it then killed.
bool is_crash_beside_kill(const WorkerExit& exit, const WorkerExit& killed) {
  const auto signal = exit.signal();
  return exit.root && killed.root && !killed.local && killed.signal() == SIGKILL && signal && *signal != SIGKILL &&
         cause_of_signal(*signal) != Cause::Unknown;
}

}  // namespace

const WorkerExit* find_culprit(const Findings& findings) {
  const WorkerExit* best = nullptr;
  for (const WorkerExit& exit : findings.exits) {
    if (exit.code == 0 || exit.ranks.size() != 1 || findings.survived(exit.place)) continue;
    const bool stopped = exit.was_stopped();
    const bool best_stopped = best && best->was_stopped();
    if (!best || (best_stopped && !stopped) || is_crash_beside_kill(exit, *best) ||
        (stopped == best_stopped && exit.root && (!best->root || best->local || earlier(exit.place, best->place)) &&
         !(exit.local && !best->local)))
      best = &exit;
  }
  // If several tasks ended together before it, it was not the first.
  const bool is_late = best && best->by_srun && findings.any_exit([&](const WorkerExit& e) {
    return e.by_srun && e.ranks.size() > 1 && e.failed() && !findings.survived(e.place) &&
           earlier(e.place, best->place);
  });
  return is_late ? nullptr : best;
}

bool is_of_several_nodes(const WorkerExit& exit, const Findings& findings) {
  return exit.local && exit.node &&
         findings.any_exit([&](const WorkerExit& e) { return e.local && e.node && e.node != exit.node; });
}

namespace {

// Every rank that the log mentions, or that the size of the world implies.
std::set<int> known_ranks(const Findings& findings) {
  std::set<int> ranks;
  for (const auto& [rank, trace] : findings.ranks) ranks.insert(rank);
  for (const Finding& finding : findings.found)
    if (finding.rank) ranks.insert(*finding.rank);
  const std::int64_t world = std::min<std::int64_t>(findings.world_size.value_or(0), 1 << 16);
  const std::int64_t highest = ranks.empty() ? -1 : *ranks.rbegin();
  for (std::int64_t rank = 0; rank < std::max(world, highest + 1); ++rank) ranks.insert(static_cast<int>(rank));
  return ranks;
}

// Watchdogs report how many collectives their ranks had queued. Ranks that queued the fewest in their group are behind,
// if they are the smaller part of it and had not queued what the others wait in. Several groups may stall; the first
// one that timed out counts.
Silence rank_behind(const Findings& findings) {
  std::map<std::string, QueuedWork> groups = findings.enqueued;
  if (groups.empty())  // then by what they wait in
    for (const CollectiveWork& work : findings.works)
      groups
          .try_emplace(work.group,
                       QueuedWork{.last = {}, .first = static_cast<int>(groups.size()), .least = 0, .line = {}})
          .first->second.add(work.rank, {work.sequence, work.sequence - 1}, {work.place, work.text});
  const QueuedWork* best = nullptr;
  std::vector<int> behind;
  for (const auto& [name, queued] : groups) {
    std::vector<int> ranks;
    bool others_wait = true;
    for (const auto& [rank, work] : queued.last) {
      const bool is_least = work.enqueued == queued.least;
      if (is_least) ranks.push_back(rank);
      others_wait = others_wait && (is_least || work.completed >= queued.least);
    }
    const bool are_behind = others_wait && 2 * ranks.size() < queued.last.size();
    if (are_behind && (!best || queued.first < best->first)) best = &queued, behind = ranks;
  }
  if (!best) return {};
  const bool are_several = behind.size() > 1;
  return {behind.front(),
          fmt::format("{} {} had queued fewer collectives than the others of {} group", are_several ? "ranks" : "rank",
                      fold_ranks(behind), are_several ? "their" : "its"),
          best->line};
}

}  // namespace

Silence find_silent_rank(const Findings& findings, const std::set<int>& complained) {
  std::map<int, int> named;
  for (const AbsentRank& absent : findings.named_absent) ++named[absent.rank];
  if (!named.empty()) {
    const int most =
        std::max_element(named.begin(), named.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
    const auto absent = std::find_if(findings.named_absent.begin(), findings.named_absent.end(),
                                     [&](const AbsentRank& a) { return a.rank == most; });
    return {most, fmt::format("the other ranks report that rank {} did not arrive", most), absent->line};
  }
  if (complained.empty()) return {};
  if (Silence behind = rank_behind(findings); behind.rank) return behind;
  std::vector<int> silent;
  for (const int rank : known_ranks(findings))
    if (!complained.count(rank)) silent.push_back(rank);
  if (silent.empty()) return {};
  // A rank that never printed a line is only remarkable if all others printed some.
  std::optional<int> first;
  for (const int rank : silent) {
    const auto trace = findings.ranks.find(rank);
    if (trace == findings.ranks.end()) continue;
    if (!first || earlier(trace->second.last, findings.ranks.at(*first).last)) first = rank;
  }
  const bool are_too_many = silent.size() > 1 && (silent.size() >= complained.size() || !first);
  if (are_too_many) return {};
  if (!first && !findings.world_size && complained.size() == 1) return {};  // nothing proves that there are others
  const int rank = first.value_or(silent.front());
  if (silent.size() == 1) return {rank, fmt::format("rank {} is the only one that reported nothing", rank)};
  return {rank, fmt::format("of the ranks that reported nothing ({}), rank {} became silent first", fold_ranks(silent),
                            rank)};
}

namespace {

// Whether a word ends here, with its plural: after "process" in "processes", but not in "processing" or
// "process_group".
bool ends_word(std::string_view rest) {
  if (!take(rest, "es")) take(rest, "s");
  return rest.empty() || !(is_letter(rest[0]) || rest[0] == '_');
}

// "worker 3 (pid 4711) has died": whether one of the events stands near one of the things.
bool says_near(std::string_view text, std::string_view things, std::string_view events) {
  constexpr std::size_t kNearBytes = 60;
  while (!things.empty()) {
    const std::string_view thing = things.substr(0, things.find('|'));
    things.remove_prefix(std::min(thing.size() + 1, things.size()));
    for (std::size_t at = 0; (at = text.find(thing, at)) != npos; ++at) {
      const bool is_inside =
          at > 0 && (is_letter(text[at - 1]) || std::string_view("._/'\"").find(text[at - 1]) != npos);  // of a name
      const std::size_t begin = at > kNearBytes ? at - kNearBytes : 0;
      if (!is_inside && ends_word(text.substr(at + thing.size())) &&
          has_one_of(text.substr(begin, at - begin + thing.size() + kNearBytes), events))
        return true;
    }
  }
  return false;
}

bool is_strong_cause(const Finding& finding) {
  const bool has_reason = finding.sign != Sign::NativeCrash || finding.traceback || reports_dead_loader(finding.text);
  return role_of(finding.sign) == Role::Cause && has_reason && !finding.bare;
}

bool is_unspecific_failure(const Finding& finding) {
  return finding.sign == Sign::PythonError && says(finding.text, "unspecific");
}

bool reports_lost_process(const Finding& finding) {
  if (finding.sign != Sign::PythonError) return false;
  const std::string low = in_small_letters(finding.text);
  if (has_word(low, "ran out of input")) return false;  // pickle's EOFError: a file is empty
  return says(low, "lost-process") || says_near(low, words_of("process"), words_of("ended"));
}

// Whether a start that failed succeeded later: a pod that waited for its node, or a command that a script does not
// need.
bool recovered_later(const Finding& wait, const Findings& findings) {
  if (wait.sign != Sign::NotLaunched && wait.sign != Sign::ShellError) return false;
  const bool is_beside =
      wait.bare &&
      has_one_of(wait.text, "not found|CommandNotFoundE|odulefile|Lmod|Unknown command|is not recognized as") &&
      !has_one_of(wait.text,
                  "python|torchrun|deepspeed|accelerate|mpi|srun|singularity|apptainer|"
                  "docker|horovodrun|.py|./|exec");
  const bool may_pass =
      is_beside ||
      has_one_of(wait.text, "FailedScheduling|nschedulable|FailedMount|FailedAttach|nsuffi|node types can");
  const auto is_later = [&](const Place& place) {
    return place.file == wait.place.file && place.line > wait.place.line;
  };
  const auto tells = [&](const Finding& f) {
    const Role role = role_of(f.sign);
    return f.sign != wait.sign && role <= Role::Consequence && f.sign != Sign::Stopped && is_later(f.place);
  };
  const auto ended = [&](const WorkerExit& e) {               // what a script misses may end it with an exit code
    const bool was_started = !e.ranks.empty() && !e.by_srun;  // a launcher of its own tells of the program
    return (is_beside ? e.signal() || was_started : e.code != 0) && is_later(e.place);
  };
  return may_pass && (std::any_of(findings.found.begin(), findings.found.end(), tells) || findings.any_exit(ended));
}

// Whether a program could not be started while, or after, training was running.
bool is_beside_the_run(const Finding& finding) {
  return finding.sign == Sign::NotLaunched && finding.bare && finding.place.progress > 0;
}

}  // namespace

bool is_one_of(Sign sign, std::initializer_list<Sign> kinds) {
  return std::find(kinds.begin(), kinds.end(), sign) != kinds.end();
}

bool is_time_out(Sign sign) { return is_one_of(sign, kTimeOuts); }

Suspects::Suspects(const Findings& all) : findings(all), culprit(find_culprit(all)) {
  for (const Finding& finding : findings.found)
    if (!findings.survived(finding.place) && !recovered_later(finding, findings) && !is_beside_the_run(finding))
      live.push_back(&finding);
  for (const Finding* finding : live)
    if (role_of(finding->sign) == Role::Consequence && finding->rank && finding->sign != Sign::Stopped)
      complained.insert(*finding->rank);
  for (const RootCauseLine& line : findings.braid)
    if (!braid && !findings.survived(line.place)) braid = &line;
  find_first_failure();
  find_ends_from_outside();
}

std::optional<int> Suspects::culprit_rank() const {
  if (braid) return braid->rank;
  if (culprit && is_of_several_nodes(*culprit, findings)) return std::nullopt;
  return culprit && !culprit->was_stopped() ? std::optional(culprit->ranks[0]) : std::nullopt;
}

const Finding* Suspects::earliest(const std::function<bool(const Finding&)>& wanted) const {
  const Finding* best = nullptr;
  for (const Finding* finding : live)
    if (wanted(*finding) && (!best || earlier(finding->place, best->place))) best = finding;
  return best;
}

const Finding* Suspects::first(std::initializer_list<Sign> kinds) const {
  return earliest([&](const Finding& f) { return is_one_of(f.sign, kinds); });
}

const Finding* Suspects::first_of_a_rank(std::initializer_list<Sign> kinds) const {
  return earliest([&](const Finding& f) { return f.rank && is_one_of(f.sign, kinds); });
}

const Finding* Suspects::best_cause() const {
  const auto rank = culprit_rank();
  const auto is_named = [](const Finding& f) { return f.bare && !f.traceback && f.sign != Sign::PythonError; };
  const Finding* strong = nullptr;
  if (rank) strong = earliest([&](const Finding& f) { return is_strong_cause(f) && f.rank == rank; });
  if (!strong) strong = earliest([&](const Finding& f) { return is_strong_cause(f) && !is_explained_from_outside(f); });
  if (!strong) strong = earliest(is_strong_cause);
  const auto is_said_before = [&](const Finding& f) { return is_named(f) && earlier(f.place, strong->place); };
  const bool says_less = strong && reports_lost_process(*strong) && earliest(is_said_before);  // "Training failed"
  if (strong && !says_less) return told_nearby(*strong);
  const Finding* weak = earliest([&](const Finding& f) { return is_named(f) && f.sign != Sign::KilledByShell; });
  if (!weak) weak = earliest([](const Finding& f) { return f.bare && !f.traceback; });
  if (!weak) weak = earliest([](const Finding& f) { return f.bare; });
  if (weak && weak->sign == Sign::PythonError)  // of a driver that lost a process
    if (const Finding* crash = first({Sign::NativeCrash}); crash && earlier(crash->place, weak->place)) return nullptr;
  // An exception ends a process with an exit code, not by a signal.
  const auto signal = culprit ? culprit->signal() : std::nullopt;
  const bool by_signal = signal && *signal != SIGTERM && *signal != SIGABRT;
  if (weak && by_signal && weak->sign != Sign::KilledByShell && weak->sign != Sign::CudaError) return nullptr;
  const Finding* hang = first_time_out();
  const bool is_kill = weak && weak->sign == Sign::KilledByShell;
  if (is_kill && earliest([&](const Finding& f) {
        const bool may_follow = f.sign == Sign::JobCancelled || f.sign == Sign::TimeLimit;
        return role_of(f.sign) == Role::Outside && (!may_follow || earlier(f.place, weak->place));
      }))
    return nullptr;
  const bool may_be_consequence = weak && (is_kill || weak->traceback);
  if (may_be_consequence && (is_kill || weak->sign == Sign::PythonError) && failed_before(weak->place)) return nullptr;
  return may_be_consequence && hang && earlier(hang->place, weak->place) ? nullptr : weak;
}

bool Suspects::failed_before(const Place& place) const { return first_failure_ && earlier(*first_failure_, place); }

bool Suspects::is_limit_logged_late(const Finding& end) const {
  constexpr double kLate = 60;  // seconds; a job that failed earlier waits longer for its end
  return end.sign == Sign::TimeLimit && first_failure_ && first_failure_->time && end.place.time &&
         seconds_between(*first_failure_->time, *end.place.time) < kLate;
}

void Suspects::find_first_failure() {
  const auto take_earlier = [&](const Place& place) {
    if (!first_failure_ || earlier(place, *first_failure_)) first_failure_ = place;
  };
  for (const Finding* f : live)
    if (f->sign == Sign::NetworkTrouble || f->sign == Sign::RendezvousFailed || f->sign == Sign::NativeCrash ||
        (f->sign == Sign::ConnectionLost && !has_one_of(f->text, "aylet|Actor|worker died")))
      take_earlier(f->place);
  for (const WorkerExit& exit : findings.exits) {
    if (exit.was_killed() && !findings.survived(exit.place)) take_earlier(exit.place);
  }
}

// The cause in the lines before an exception that says only that something failed. A lost network is left to
// diagnose_time_out().
const Finding* Suspects::told_before(const Finding& vague) const {
  const auto before = [&](const Finding& f) {
    return f.place.file == vague.place.file && f.place.line < vague.place.line;
  };
  const Finding* cause = earliest([&](const Finding& f) {
    return role_of(f.sign) == Role::Cause && f.sign != Sign::PythonError && f.sign != Sign::NativeCrash && before(f);
  });
  if (cause) return cause;
  return earliest([&](const Finding& f) { return f.sign == Sign::NetworkTrouble && before(f); }) ? nullptr : &vague;
}

// NCCL reports in a later line what its error was, a container why it did not start. Shared memory that
// cannot be opened may be full, or be one file too many.
const Finding* Suspects::told_nearby(const Finding& vague) const {
  constexpr std::uint64_t kLinesAround = 16;
  const bool by_nccl = has_word(vague.text, "unhandled cuda error") || has_word(vague.text, "UnhandledCudaError");
  const bool by_container =
      vague.sign == Sign::NotLaunched && (has_word(vague.text, "pyxis") || has_word(vague.text, "spank"));
  const bool says_nothing =
      vague.text == "MemoryError:" || has_word(vague.text, "Tracebacks above this line");  // Paddle, fairseq
  const bool by_shared_memory = vague.sign == Sign::SharedMemory;
  if (vague.sign == Sign::PythonError && has_one_of(vague.text, "NCCL|nccl")) {  // NCCL says elsewhere what was wrong
    const Finding* told = earliest([](const Finding& f) { return is_strong_cause(f) && f.sign != Sign::PythonError; });
    return told ? told : &vague;
  }
  if (is_unspecific_failure(vague)) return told_before(vague);
  if (!by_nccl && !by_container && !says_nothing && !by_shared_memory) return &vague;
  const Finding* cause = earliest([&](const Finding& f) {
    // NCCL may say why before it fails to open shared memory.
    const std::uint64_t from =
        by_shared_memory ? vague.place.line - std::min(vague.place.line, kLinesAround) : vague.place.line + 1;
    return is_strong_cause(f) && f.sign != vague.sign && !(by_container && f.traceback) &&
           !(by_shared_memory && f.sign != Sign::TooManyFiles) &&
           (f.rank == vague.rank || ((by_nccl || by_shared_memory) && !f.rank)) && f.place.file == vague.place.file &&
           f.place.line >= from && f.place.line <= vague.place.line + kLinesAround;
  });
  return cause ? cause : &vague;
}

bool Suspects::came_while_saving(const Finding& finding) const {
  const auto& saving = findings.files[static_cast<std::size_t>(finding.place.file)].saving;
  const bool follows = saving && saving->line < finding.place.line && saving->progress == finding.place.progress;
  return follows || (finding.traceback && finding.traceback->in_saving);
}

bool Suspects::is_loss_of_worker(const Finding& lost) const {
  for (const char* word : {"Actor", "A worker died", "WorkerCrashed"})
    if (has_word(lost.text, word)) return true;
  const auto& exits = findings.exits;
  const Finding* cut = first({Sign::StepCancelled, Sign::JobCancelled});
  const auto is_first = [&](const WorkerExit& e) {  // what has no rank is the whole job
    return e.ranks.empty() || (e.root && e.ranks == exits.front().ranks);
  };
  const bool is_only_one = std::all_of(exits.begin(), exits.end(), is_first);
  const bool has_global = std::any_of(exits.begin(), exits.end(), [](auto& e) { return !e.local; });
  return std::any_of(exits.begin(), exits.end(), [&](const WorkerExit& e) {
    const bool waited = !e.ranks.empty() && std::all_of(e.ranks.begin(), e.ranks.end(),
                                                        [&](int rank) { return complained.count(rank) > 0; });
    const bool is_own = waited || (e.local && has_global) || (!lost.rank && is_only_one);
    const auto signal = e.signal();  // who loses the others aborts
    const bool is_whole_job = e.ranks.empty() && (!signal || *signal == SIGABRT);
    if (cut && e.signal() == SIGKILL && earlier(cut->place, e.place)) return false;
    return e.failed() && !is_own && !is_whole_job && !findings.survived(e.place);
  });
}

void Suspects::find_ends_from_outside() {
  std::map<int, const Finding*> told;  // by rank, its first SIGTERM
  for (const Finding* f : live) {
    if (role_of(f->sign) != Role::Outside || f->sign == Sign::StepCancelled || f->sign == Sign::Interrupted) continue;
    outside_.push_back(f);
    if (f->sign != Sign::TerminatedFromOutside || !f->rank) continue;
    const Finding*& first = told[*f->rank];
    if (!first || earlier(f->place, first->place)) first = f;
  }
  const int highest = findings.ranks.empty() ? 0 : findings.ranks.rbegin()->first;
  const auto world = std::max<std::int64_t>(findings.world_size.value_or(0), highest + 1);
  if (static_cast<std::int64_t>(told.size()) < world && !more_were_told()) return;
  for (const auto& [rank, first] : told)
    if (!last_signal_ || earlier(last_signal_->place, first->place)) last_signal_ = first;
}

// Launchers end the other ranks when one has failed, and lines of different ranks come in any order: a SIGTERM explains
// what its own rank raised after it, and that processes are gone, but not why another rank failed.
bool Suspects::is_explained_from_outside(const Finding& cause) const {
  const auto rank = cause.rank ? cause.rank : culprit_rank();
  const bool is_loss = reports_lost_process(cause);
  const bool all_told = (!rank || more_were_told()) && last_signal_ && earlier(last_signal_->place, cause.place);
  const auto explains = [&](const Finding& end) {
    if (end.sign != Sign::TerminatedFromOutside) return true;
    return !end.rank || is_loss || all_told || end.rank == rank;
  };
  return std::any_of(outside_.begin(), outside_.end(),
                     [&](const Finding* end) { return explains(*end) && earlier(end->place, cause.place); });
}

bool Suspects::more_were_told() const { return !findings.has_room(Sign::TerminatedFromOutside); }

bool Suspects::was_told_to_end(int rank, const Place& before) const {
  return earliest([&](const Finding& f) {
    return (f.sign == Sign::TerminatedFromOutside || f.sign == Sign::Interrupted) && f.rank == rank &&
           earlier(f.place, before);
  });
}

bool Suspects::follows_kill(const Finding& cause) const {
  if (cause.sign != Sign::PythonError || !cause.traceback) return false;
  return findings.any_exit([&](const WorkerExit& e) {
    const auto signal = e.signal();
    const bool is_sudden = signal && *signal != SIGABRT && cause_of_signal(*signal) != Cause::Unknown;
    return e.root && is_sudden && e.place.file == cause.place.file && e.place.line < cause.place.line &&
           !findings.survived(e.place);
  });
}

bool Suspects::is_explained_by_others(const Finding& cause) const {
  if (follows_kill(cause)) return true;
  if (!reports_lost_process(cause)) return false;
  // If a rank lost a process, the ranks that wait for it time out and abort.
  const Finding* hang = first_time_out();
  const auto follows_hang = [&](const Place& end) {
    return hang && earlier(cause.place, hang->place) && earlier(hang->place, end);
  };
  const auto is_by_signal = [&](const WorkerExit& e) {
    return e.was_killed() && !findings.survived(e.place) && !follows_hang(e.place);
  };
  return findings.any_exit(is_by_signal) || earliest([&](const Finding& f) {
           const bool was_lost = role_of(f.sign) == Role::Consequence && f.sign != Sign::Stopped;
           return (f.sign == Sign::NativeCrash && !follows_hang(f.place)) || f.sign == Sign::CgroupOom ||
                  f.sign == Sign::NodeFailure || f.sign == Sign::Preempted ||
                  (was_lost && earlier(f.place, cause.place));
         });
}

const Finding* Suspects::hardware_behind(const Finding& cause) const {
  return cause.sign == Sign::CudaError ? first({Sign::Hardware}) : nullptr;
}

Cause Suspects::refined(const Finding& cause) const {
  if (hardware_behind(cause)) return Cause::NodeFailure;
  const bool experts = (cause.traceback && cause.traceback->in_experts) || findings.num_experts.value_or(0) > 1 ||
                       findings.expert_parallel.value_or(1) > 1;
  if (cause.sign == Sign::GpuOom && experts) return Cause::MoeOom;
  if (cause.sign == Sign::BraidError && cause.text.starts_with("braid: cannot run ")) return Cause::NotLaunched;
  const auto is_own_server = [&](const Finding* f) {  // as the last exception of several tells
    return f->traceback && f->traceback->in_client && f->rank == cause.rank && f->sign == cause.sign;
  };
  if (cause.sign == Sign::HubUnreachable && std::any_of(live.begin(), live.end(), is_own_server))
    return Cause::PythonError;
  if (cause.sign == Sign::ImageMissing && others_started(cause)) return Cause::ContainerCacheNotShared;
  const bool only_experts = findings.differing_experts > 0 && findings.differing_others == 0;
  if (cause.sign == Sign::WeightsDiffer && (findings.fp8 || only_experts)) return Cause::Fp8RoundtripMismatch;
  const bool in_data = reports_dead_loader(cause.text) || (cause.traceback && cause.traceback->in_data);
  if (cause.sign == Sign::PythonError && in_data && others_waited(cause)) return Cause::DataRankCascade;
  return cause_of(cause.sign);
}

// Whether an image is missing on one node only: then the tasks of the others were stopped.
bool Suspects::others_started(const Finding& cause) const {
  const bool was_stopped = first({Sign::StepCancelled});
  return was_stopped || findings.any_exit([&](const WorkerExit& e) {
    return e.was_stopped() && cause.rank && e.ranks != std::vector{*cause.rank};
  });
}

// Whether other ranks timed out or lost a peer.
bool Suspects::others_waited(const Finding& cause) const {
  return std::any_of(live.begin(), live.end(), [&](const Finding* f) {
    const bool is_of_worker = !f->rank && has_one_of(f->text, "ConnectionResetError|BrokenPipeError|EOFError");
    return role_of(f->sign) == Role::Consequence && f->sign != Sign::Stopped && (f->rank != cause.rank || !f->rank) &&
           !is_of_worker;
  });
}

}  // namespace braid
