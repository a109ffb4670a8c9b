// Decides why a run failed. Every rank keeps a connection to the board, which the launcher serves, or rank 0 under
// other launchers. A connection that ends without a bye means that the rank died, whatever killed it. This is noticed
// at once and without false alarms, unlike a missed heartbeat.
//
// The first failure becomes the root cause and is sent to every rank. Errors of collectives usually follow from a
// peer's death, so the board waits a moment for a better explanation. The same holds for any failure after a connection
// was lost, until it is known how that rank ended.
//
// comm/failure_board.cpp has the board and its judgement, comm/rank_monitor.cpp the ranks' side and the messages.
#pragma once

#include <signal.h>
#include "base/socket.h"
#include "comm/progress.h"

namespace braid {

// --- which rank caused a failure; pure: time is an argument

// A rank as last reported to the failure board.
struct ObservedRank {
  RankStatus status;
  double silent_s = 0;    // since its last message
  bool finished = false;  // it sent a bye
  std::string host{};
};
using ObservedRanks = std::map<int, ObservedRank>;

struct HangLimits {
  double progress_s = 300;  // a rank may make no progress for this long
  double silence_s = 30;    // its monitor, which no computation delays, may be silent for this long
};

struct HangDiagnosis {
  int culprit = 0;
  std::string message;  // what is wrong with the culprit, and which ranks wait for it in which operation
};

using HostRanks = std::map<std::string, std::vector<int>>;  // host name -> its ranks, ascending

// Hosts whose ranks have all fallen silent, with those ranks, once one of the ranks has exceeded the limit. Never
// `own_host`, which the caller can reach.
HostRanks unreachable_hosts(const ObservedRanks& ranks, double silence_s, const std::string& own_host);

// Ranks whose records of a meeting differ: one of them left out an operation, or communicates another size. The culprit
// is the one that differs from most others; of two ranks, either may be. Without a majority, nothing as long as other
// members may still arrive, unless this is the `last_chance`.
std::optional<HangDiagnosis> diagnose_mismatch(const ObservedRanks& ranks, bool last_chance = false);

// Follows "waits for" from a stuck rank to the one that keeps the others waiting. Nothing if every rank made progress
// and reported within the limits.
std::optional<HangDiagnosis> diagnose_hang(const ObservedRanks& ranks, const HangLimits& limits);

// A failure that is not the root cause yet, since a better explanation may follow: a lost connection waits for the
// parent process to report how the rank ended, a consequence for news of the rank that caused it.
struct Suspicion {
  int rank = 0;
  std::string op, message;
  std::chrono::steady_clock::time_point since;
  bool consequence = false;  // another rank's failure probably caused it
};

class Suspicions {
 public:
  using Clock = std::chrono::steady_clock;

  // How long a lost connection waits for the end of its process, and a consequence for its origin.
  Suspicions(std::chrono::milliseconds for_end, std::chrono::milliseconds for_origin)
      : for_end_(for_end), for_origin_(for_origin) {}

  // Replaces an earlier suspicion of the same rank only by one that says that it is a consequence.
  void add(Suspicion suspicion);
  // When the rank's connection was lost, if nothing more is known about the rank.
  std::optional<Clock::time_point> lost_at(int rank) const;
  // Whether another rank was lost earlier: then what `rank` reports at `time` is a consequence.
  bool another_lost_before(int rank, Clock::time_point time) const;
  // The most likely root cause, once it has waited long enough. `final`: no more reports will come.
  std::optional<Suspicion> due(Clock::time_point now, bool final) const;

 private:
  const std::chrono::milliseconds for_end_, for_origin_;
  std::map<int, Suspicion> by_rank_;
};

// --- messages between ranks and the board: one JSON object per line over TCP

struct RankIdentity {
  int rank = 0;
  std::string host;
  std::string coordinates;  // module and coordinates, e.g. "language[tp=1 cp=0 dp=0 pp=0]"
};

struct RootCause {
  int rank = 0;
  std::string line;  // "rank 3 (host a12, language[tp=1 ...]) failed in ...: killed by SIGKILL"
};
RootCause make_root_cause(const RankIdentity& who, const std::string& op, const std::string& message);
// "host b7 (ranks 2-3) cannot be reached from host a12: ..."; `hosts` must not be empty.
RootCause make_unreachable_cause(const HostRanks& hosts, const std::string& from_host, const std::string& message);

// The messages about a rank whose connection ended without a bye, and about one that has fallen silent.
inline constexpr const char* kEndedWithoutFinishing =
    "its process ended without finishing (killed, crashed or exited early)";
std::string no_heartbeat(double limit_s);

// A polling loop that has not run for this long was suspended (Ctrl-Z, a paused machine), most likely together with the
// other processes. Missing messages from that time prove nothing.
inline constexpr std::chrono::seconds kNotRunning{1};

// From a rank:
struct Hello {
  RankIdentity who;
  int world_size = 1;
  double hang_limit_s = 300, silence_limit_s = 30, connect_timeout_s = 300;
  std::string nonce{};  // the board's; proves that the rank belongs to this run

  // A silent rank makes no progress either, so the silence limit is at most the hang limit.
  HangLimits limits() const { return {hang_limit_s, std::min(silence_limit_s, hang_limit_s)}; }
};
struct Beat {  // what it is doing
  RankStatus status;
};
struct Fail {  // its own error
  std::string op, message;
  // A collective broke, most likely because a peer died: the board waits for a better explanation.
  bool consequence = false;
};
struct Bye {};  // it has finished

// The board sends the following messages, and the root cause, which is the same for every rank.
struct Welcome {
  RankIdentity server;  // rank -1: the launcher
};
struct Hosts {  // sent once every rank has joined
  HostRanks ranks;
};
struct Tick {};   // the board is alive
struct Close {};  // answers a bye; to a rank that has said none, it means that the run is over

using BoardMessage = std::variant<Hello, Beat, Fail, Bye, Welcome, Hosts, Tick, RootCause, Close>;

std::string encode(const BoardMessage& message);              // with the newline
std::optional<BoardMessage> decode(const std::string& line);  // nothing when it is not a valid message

// A connection that carries messages. Several threads may send if they take turns; one receives.
class MessageSocket {
 public:
  explicit MessageSocket(Fd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  bool is_open() const { return open_; }  // until the other side closes it, or sends a line that is too long
  void close() { open_ = false; }

  // Calls handle(message) for each valid message that has arrived. False if nothing arrived.
  bool receive(const std::function<void(const BoardMessage&)>& handle);
  // Waits up to `timeout` for the socket to accept everything, earlier messages included. A line that it began is
  // completed before another, so the other side never sees half a line.
  void send(const BoardMessage& message, std::chrono::milliseconds timeout);
  void send_rest();  // of earlier messages, without waiting
  bool idle() const { return unsent_.empty(); }

 private:
  Fd socket_;
  bool open_ = true;
  std::string received_, unsent_;
};

// --- the board

struct BoardOptions {
  std::string bind_host = "127.0.0.1";  // "" listens on every interface
  RankIdentity server;                  // rank -1: the launcher
  int world_size = 1;
  std::vector<std::string> rank_coordinates;  // module and coordinates of each rank, if the server knows them
  bool ends_follow = false;                   // whether process_ended() will be called for every rank
  std::string nonce{};                        // a hello without it comes from another run and is rejected
};

// How a rank's process ended, as seen by its parent.
struct ProcessEnd {
  int rank = 0;
  std::string how;           // "exited with code 3"
  bool failed = false;       // true unless the exit code is 0
  bool consequence = false;  // probably caused by another rank's end
};

class FailureBoard {
 public:
  // `on_failure` is called once, from the board's thread, after the ranks have been notified.
  FailureBoard(BoardOptions options, std::function<void(const RootCause&)> on_failure);
  ~FailureBoard();  // tells the ranks that the run is over

  int port() const;
  std::optional<RootCause> root_cause() const;
  void process_ended(ProcessEnd end);  // in the order in which the processes ended
  void finish();      // judges everything reported so far and stops serving; root_cause() is final afterwards
  void expect_end();  // from here on the end of a rank is not a failure: the user is stopping the run

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// --- a rank's client: a thread that reports what the rank is doing, receives the root cause of a failure, and reports
// a crash when the rank itself no longer can

class RankMonitor {
 public:
  // `on_failure` is called once, from the monitor's thread, when any rank has failed. It should end the process, since
  // this rank's own thread may be deadlocked in a collective.
  RankMonitor(const Endpoint& board, Hello hello, Progress& progress, std::function<void(const RootCause&)> on_failure,
              std::chrono::milliseconds connect_timeout);
  ~RankMonitor();

  // Publishes this rank's own error and waits for the root cause from the board, which may name another rank. Does not
  // call on_failure. `consequence`: a collective failed, so a peer's death may be the cause.
  RootCause report(const std::string& message, bool consequence);

  void goodbye();  // the rank has finished; returns once the board has answered, is gone or has been silent too long

  // Called from a signal handler: lets the monitor's thread publish the signal, then returns. Does not interfere when
  // another thread of this rank is already ending the process.
  void publish_fatal_signal(int signal) noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Routes SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT of this process through the monitor before they take effect. One
// monitor at a time; the guard restores the old handlers.
class CrashHandler {
 public:
  explicit CrashHandler(RankMonitor& monitor);
  ~CrashHandler();
  CrashHandler(const CrashHandler&) = delete;
  CrashHandler& operator=(const CrashHandler&) = delete;

 private:
  static constexpr std::array<int, 5> kFatalSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  std::array<struct sigaction, kFatalSignals.size()> old_actions_;
  stack_t old_stack_;
};

// While it lives, writing to a closed peer fails with an error instead of ending the process: Gloo writes without
// MSG_NOSIGNAL, and SIGPIPE would end a rank before it can report why. It installs a handler rather than SIG_IGN, which
// child processes would inherit. If SIGPIPE is already ignored, nothing changes.
class BrokenPipeGuard {
 public:
  BrokenPipeGuard();
  ~BrokenPipeGuard();
  BrokenPipeGuard(const BrokenPipeGuard&) = delete;
  BrokenPipeGuard& operator=(const BrokenPipeGuard&) = delete;

 private:
  struct sigaction old_action_;
};

}  // namespace braid
