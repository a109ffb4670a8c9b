// What was found in the logs, in bounded memory: the material of a diagnosis.
#pragma once

#include <concepts>
#include <csignal>
#include "cluster/doctor/line.h"
#include "cluster/doctor/rules.h"
#include "cluster/lines/text.h"

namespace braid {

// Where and when a line stands among all that was read.
struct Place {
  int file = 0;
  std::uint64_t line = 0;
  std::optional<LogTime> time{};  // of the line, or of the last one before it that has a time
  bool own_time = false;
  std::int64_t progress = 0;    // lines before it that report an iteration
  std::int64_t iterations = 0;  // how many iterations those report
  int run = 0;                  // counts the starts: a job that is started again writes into the same log
};

// Whether a came before b: by their own time stamps if both have one, by position in one file, else by inherited times.
bool earlier(const Place& a, const Place& b);

// A line as evidence: a long one is cut around the decisive words.
struct Quote {
  Place place{};
  std::string shown{};
  std::size_t focus = 0;  // offset of those words
};

// The line that is examined.
struct Line : Quote {
  std::string_view text;    // the whole line, cleaned
  std::string_view recent;  // the log up to its end, from some way before it
  LineMarks marks{};

  std::string_view body() const { return marks.body; }
};

struct Traceback {
  Quote frame{};                                // the innermost one: File "...", line 3, in f
  std::set<std::string, std::less<>> traits{};  // what the program was doing, see [frames] and [code] of rules.txt

  bool is(std::string_view trait) const { return traits.contains(trait); }
};

struct Finding : Quote {
  Sign sign = Sign::Remark;
  std::optional<int> rank{};
  std::string host{};
  std::string text{};  // the message
  std::optional<Traceback> traceback{};
  bool labelled = false;    // the rank is from a label, see LineMarks
  bool local = false;       // the rank counts the processes of one node
  bool has_writer = false;  // a prefix names the writer, but not its rank
  bool by_name = false;     // the rank is only from the name of its file
  bool bare = false;        // an exception without its traceback, or the reverse

  Role role() const { return role_of(sign); }
  bool is(std::same_as<Sign> auto... signs) const { return ((sign == signs) || ...); }
  bool is_wait() const { return role() == Role::Consequence && !is(Sign::Stopped); }  // timed out, or lost a peer
  bool raised(std::string_view trait) const { return traceback && traceback->is(trait); }
};

// How a process ended, as a launcher reports it.
struct WorkerExit : Quote {
  std::vector<int> ranks{};
  std::string host{};
  int code = 0;        // below 0: a signal
  bool root = false;   // the launcher says that it was the first
  bool local = false;  // the rank is one of its node
  bool by_srun = false, by_torchrun = false;
  std::optional<int> local_rank{};  // if torchrun reports both
  std::optional<int> node{};        // from srun's label

  std::optional<int> signal() const { return signal_of_code(code); }
  bool is_of(std::optional<int> rank) const { return rank && ranks == std::vector{*rank}; }
  bool was_stopped() const { return signal() == SIGTERM; }
  bool failed() const { return code != 0 && !was_stopped(); }
  // True for signals that crashes and the system raise, not for those that people send (cause_of_signal()).
  bool was_killed() const { return signal() && cause_of_signal(*signal()) != Cause::Unknown; }
};

struct RankTrace {
  Place last;
  std::uint64_t lines = 0;
  bool labelled = false;
};

struct FileTrace {
  std::string name;
  std::uint64_t bytes = 0;
  std::int64_t progress = 0;    // lines that report an iteration
  std::int64_t iterations = 0;  // how many iterations they report
  std::int64_t best_iteration = -1;
  std::set<std::size_t> first_steps{};  // hashes of the first lines that report iterations
  int run = 0;
  std::int64_t progress_before_run = 0;  // the progress of the run before
  Quote good_end{};    // the last line that reports a successful end; its number is 0 if there is none
  Quote script_end{};  // the same of a script that ended with exit code 0 (a pipe has that of its last command)
  std::optional<Place> saving{};       // the last line that reports a save, until it is done
  std::optional<Finding> said_done{};  // the last line in which one process says that training is done
  std::optional<Quote> last{};         // the last line that is not empty
  bool has_other_ranks = false;        // its lines name other ranks than its name does
};

// The collective that a rank's watchdog found waiting, or the last ones that the rank had queued and completed.
struct CollectiveWork : Quote {
  int rank = 0;
  std::string group{}, operation{};  // no operation: what was queued
  std::int64_t queued = 0, completed = 0;
};

struct Findings {
  std::vector<FileTrace> files;
  std::vector<Finding> found;
  std::vector<WorkerExit> exits;
  std::map<int, RankTrace> ranks;
  std::map<int, std::string> hosts;  // of ranks
  std::vector<Finding> remarks;      // the last few
  std::vector<Finding> last_words;   // plain words near the end of a file
  std::vector<Finding> refusals;     // the first few errors of Slurm without a kind of their own
  std::map<std::tuple<std::string, bool, int, int>, CollectiveWork> works;  // by group, kind, run and rank
  std::set<std::string, std::greater<>> launchers;         // that speak in the log: advice is for their users
  std::map<std::string, std::int64_t, std::less<>> facts;  // sizes of the run, see [facts] of rules.txt
  std::optional<std::int64_t> iteration, iterations;
  std::optional<Finding> limit;          // the line that states how long the job may run
  double limit_s = 0;                    // that time in seconds; 0: unknown
  std::optional<LogTime> limit_end;      // when it ends, if a line states it
  std::optional<Quote> saved_artifacts;  // the first line about a save
  std::optional<int> named_failed;       // the first rank that a line near the end says failed
  std::optional<int> exit_code;          // of the whole job
  bool end_contradicted = false;         // a script reports success, but a process failed
  bool fp8 = false, program_spoke = false;

  // Makes a finding of the line without adding it; the host of its rank is noted.
  Finding finding_in(Sign sign, const Line& line);
  void add(Finding finding);
  bool has_room(Sign sign) const;             // whether one more finding of this kind is kept
  void add_work(const CollectiveWork& work);  // the first of its rank, group and kind
  void add_host(int rank, const std::string& host);
  RankTrace* trace_of(int rank);  // nullptr when there are too many ranks

  std::int64_t fact(std::string_view name) const { return facts.contains(name) ? facts.find(name)->second : 0; }
  const FileTrace& file_of(const Place& place) const { return files[static_cast<std::size_t>(place.file)]; }
  // Whether training went on for several iterations after it, or started again, so that it did not end the run.
  bool survived(const Place& place) const;
  template <class Wanted>
  bool any_exit(Wanted wanted) const {
    return std::ranges::any_of(exits, wanted);
  }
  // An exit that training did not outlive.
  template <class Wanted>
  const WorkerExit* find_exit(Wanted wanted) const {
    const auto exit = std::ranges::find_if(exits, [&](const auto& e) { return wanted(e) && !survived(e.place); });
    return exit == exits.end() ? nullptr : &*exit;
  }

  // Must be called once, when everything is read: if torchrun runs under srun, srun's labels are nodes, not ranks.
  void settle();

 private:
  void settle_end(FileTrace& file, int number);
  bool is_contradicted(const FileTrace& file, std::uint64_t end, int number) const;
  void forget_survived(const Place& now);

  std::map<Sign, std::size_t> kept_;
  Place forgot_at_;
  int looks_for_fp8_ = 0;
};

// Cuts a long line so that it begins some way before `focus`, which is moved with it.
std::string_view kept_of(std::string_view text, std::size_t& focus);

}  // namespace braid
