#include "comm/failure_board.h"

#include <poll.h>
#include <unistd.h>

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/socket.h"
#include "base/strings.h"
#include "comm/hang_diagnosis.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{500};
// How long the parent may take to report how a process ended, after its connection was lost.
constexpr milliseconds kVerdictWait{1500};
// How long the loss of a peer may take to be noticed, after a collective broke because of it.
constexpr milliseconds kConsequenceWait{3000};
constexpr milliseconds kSendTimeout{1000};

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

struct Connection {
  MessageSocket socket;
  std::optional<int> rank{};  // known after hello
  bool readable = false;
};

struct RankRecord {
  RankIdentity who;
  RankStatus status;
  Clock::time_point last_heard = Clock::now();
  bool joined = false, finished = false;
};

}  // namespace

class FailureBoard::Impl {
 public:
  Impl(BoardOptions options, std::function<void(const RootCause&)> on_failure)
      : options_(std::move(options)),
        on_failure_(std::move(on_failure)),
        listener_(listen_tcp(options_.bind_host, 0)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        suspicions_(options_.verdicts_follow ? kVerdictWait : milliseconds(0), kConsequenceWait),
        ranks_(static_cast<std::size_t>(options_.world_size)) {
    for (int rank = 0; rank < options_.world_size; ++rank) {
      const bool known = static_cast<std::size_t>(rank) < options_.rank_coordinates.size();
      // Before a rank joins, its host is known only if a launcher started it: then it is this host.
      const std::string host = options_.server.rank < 0 ? host_name() : "unknown";
      ranks_[rank].who = {rank, host, known ? options_.rank_coordinates[rank] : ""};
    }
    thread_ = std::thread([this] { serve(); });
  }

  ~Impl() { finish(); }

  void finish() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    wake();
    thread_.join();
    broadcast(Close{});
  }

  int port() const { return local_port(listener_); }

  std::optional<RootCause> root_cause() const {
    std::lock_guard lock(mutex_);
    return root_cause_;
  }

  void process_ended(ProcessEnd verdict) {
    {
      std::lock_guard lock(mutex_);
      verdicts_.push_back(std::move(verdict));
    }
    wake();
  }

  void expect_end() { end_expected_ = true; }

 private:
  void wake() { eventfd_write(wake_.get(), 1); }

  void serve() {
    for (bool last_round = false; !last_round;) {
      last_round = stopping_;
      wait_for_events(last_round ? milliseconds(0) : kTick / 2);
      const auto since_last_round = Clock::now() - std::exchange(round_, Clock::now());
      if (since_last_round > kNotRunning) {
        for (RankRecord& record : ranks_) record.last_heard += since_last_round;
        if (first_join_) *first_join_ += since_last_round;
      }
      // Exit reports are collected before the sockets are read and judged after. A rank's last message was sent before
      // it ended, so it is seen first.
      const std::vector<ProcessEnd> verdicts = take_verdicts();
      for (Connection& connection : connections_)
        if (connection.readable || !verdicts.empty() || last_round) receive(connection);
      connections_.remove_if([](const Connection& c) { return !c.socket.is_open(); });
      judge_verdicts(verdicts);
      if (const auto suspicion = suspicions_.due(Clock::now(), last_round))
        declare(ranks_[suspicion->rank].who, suspicion->op, suspicion->message);
      if (Clock::now() - last_tick_ >= kTick) tick();
    }
  }

  void wait_for_events(milliseconds timeout) {
    std::vector<pollfd> entries = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_)
      entries.push_back(
          {connection.socket.fd(), static_cast<short>(connection.socket.idle() ? POLLIN : POLLIN | POLLOUT), 0});
    poll(entries.data(), entries.size(), static_cast<int>(timeout.count()));
    auto entry = entries.begin() + 2;
    for (Connection& connection : connections_) {
      const short events = (entry++)->revents;
      connection.readable = (events & ~POLLOUT) != 0;
      if (events & POLLOUT) connection.socket.send_rest();
    }
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);
    if (entries[0].revents & POLLIN) accept_one();
  }

  void accept_one() {
    Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) connections_.push_back({MessageSocket(std::move(socket))});
  }

  void receive(Connection& connection) {
    connection.socket.receive([&](const BoardMessage& message) { handle(connection, message); });
    if (!connection.socket.is_open()) lost(connection);
  }

  void handle(Connection& connection, const BoardMessage& message) {
    if (const auto* hello = std::get_if<Hello>(&message)) return join(connection, *hello);
    if (!connection.rank) return;
    RankRecord& record = ranks_[*connection.rank];
    record.last_heard = Clock::now();
    if (const auto* beat = std::get_if<Beat>(&message)) {
      MeetingRecords last = std::move(record.status.records);
      record.status = beat->status;
      if (record.status.records.empty())  // they come with some beats only
        record.status.records = std::move(last);
      else
        compare_records(record.status.records);
    }
    if (std::holds_alternative<Bye>(message)) record.finished = true;
    if (const auto* fail = std::get_if<Fail>(&message)) {
      record.status.op = fail->op;
      judge_failure(record.who.rank, fail->op, fail->message, fail->consequence, round_);
    }
  }

  void join(Connection& connection, const Hello& hello) {
    const bool of_this_run = hello.nonce == options_.nonce && hello.world_size == options_.world_size;
    if (!of_this_run || hello.who.rank < 0 || hello.who.rank >= options_.world_size) {
      connection.socket.close();
      return;
    }
    if (!first_join_) first_join_ = Clock::now();
    connection.rank = hello.who.rank;
    ranks_[hello.who.rank] = {
        .who = hello.who, .status = {}, .last_heard = Clock::now(), .joined = true, .finished = false};
    limits_ = hello.limits();
    connect_timeout_s_ = hello.connect_timeout_s;
    send_to(connection, Welcome{options_.server});
    if (root_cause_) send_to(connection, *root_cause_);
    if (absent_ranks().empty()) broadcast(Hosts{host_ranks()});
  }

  void lost(const Connection& connection) {
    if (!connection.rank) return;
    const RankRecord& record = ranks_[*connection.rank];
    if (!record.finished) suspicions_.add({record.who.rank, last_seen(record), kEndedWithoutFinishing, round_, false});
  }

  std::vector<ProcessEnd> take_verdicts() {
    std::lock_guard lock(mutex_);
    return std::exchange(verdicts_, {});
  }

  void judge_verdicts(const std::vector<ProcessEnd>& verdicts) {
    for (const ProcessEnd& verdict : verdicts) {
      const RankRecord& record = ranks_[verdict.rank];
      const bool too_early = record.joined && !record.finished;
      if (verdict.failed || too_early)
        judge_failure(verdict.rank, last_seen(record), verdict.how + (verdict.failed ? "" : " before the run was over"),
                      verdict.consequence, suspicions_.lost_at(verdict.rank).value_or(round_));
    }
  }

  // A rank's failure at `time` is the root cause, unless a peer's failure probably caused it.
  void judge_failure(int rank, const std::string& op, const std::string& message, bool consequence,
                     Clock::time_point time) {
    if (consequence || suspicions_.another_lost_before(rank, time))
      suspicions_.add({rank, op, message, round_, true});
    else
      declare(ranks_[rank].who, op, message);
  }

  std::vector<int> absent_ranks() const {
    std::vector<int> absent;
    for (const RankRecord& record : ranks_)
      if (!record.joined) absent.push_back(record.who.rank);
    return absent;
  }

  HostRanks host_ranks() const {
    HostRanks hosts;
    for (const RankRecord& record : ranks_) hosts[record.who.host].push_back(record.who.rank);
    return hosts;
  }

  void judge_absence(const std::vector<int>& absent) {
    if (seconds_since(*first_join_) < connect_timeout_s_) return;
    declare(ranks_[absent.front()].who, "start-up",
            fmt::format("rank{} {} did not join the run within {} s", absent.size() > 1 ? "s" : "", fold_ranks(absent),
                        connect_timeout_s_));
  }

  // Compares each meeting's record with the one reported before it, usually by another rank. This happens at once,
  // since the board knows only a rank's latest operations by name.
  void compare_records(const MeetingRecords& records) {
    bool agree = true;
    for (const auto& [key, record] : records) {
      agree = agree && record.agrees_with(reported_[key]);
      reported_[key] = record;
    }
    if (agree || root_cause_) return;
    if (const auto mismatch = diagnose_mismatch(observed_ranks())) declare(*mismatch);
  }

  std::map<int, ObservedRank> observed_ranks() const {
    std::map<int, ObservedRank> observed;
    for (const RankRecord& record : ranks_)
      observed[record.who.rank] = {record.status, seconds_since(record.last_heard), record.finished, record.who.host};
    return observed;
  }

  void judge_hangs() {
    if (!first_join_ || root_cause_) return;
    if (const std::vector<int> absent = absent_ranks(); !absent.empty()) return judge_absence(absent);
    const std::map<int, ObservedRank> observed = observed_ranks();
    if (const HostRanks lost = unreachable_hosts(observed, limits_.silence_s, options_.server.host); !lost.empty())
      return declare(make_unreachable_cause(lost, options_.server.host, no_heartbeat(limits_.silence_s)));
    if (const auto hang = diagnose_hang(observed, limits_))
      declare(diagnose_mismatch(observed, /*last_chance=*/true).value_or(*hang));
  }

  // The rank's last reported operation.
  static std::string last_seen(const RankRecord& record) {
    if (!record.joined) return "start-up";
    return record.status.op.empty() ? "" : "(last seen) " + record.status.op;
  }

  void declare(const HangDiagnosis& hang) {
    const RankRecord& culprit = ranks_[hang.culprit];
    declare(culprit.who, culprit.status.op, hang.message);
  }

  void declare(const RankIdentity& who, const std::string& op, const std::string& message) {
    declare(make_root_cause(who, op, message));
  }

  void declare(const RootCause& cause) {
    if (root_cause_ || end_expected_) return;
    {
      std::lock_guard lock(mutex_);
      root_cause_ = cause;
    }
    broadcast(cause);
    on_failure_(cause);
  }

  void tick() {
    last_tick_ = Clock::now();
    judge_hangs();
    broadcast(Tick{});
  }

  // The server's own rank is told last, since hearing of a failure may end this process.
  void broadcast(const BoardMessage& message) {
    for (bool own : {false, true})
      for (Connection& connection : connections_)
        if (connection.rank && own == (*connection.rank == options_.server.rank)) send_to(connection, message);
  }

  // A rank that does not read (because it is stopped, say) fills its socket; it must not delay the others.
  static void send_to(Connection& connection, const BoardMessage& message) {
    if (std::holds_alternative<Tick>(message) && !connection.socket.idle()) return;
    const bool urgent = std::holds_alternative<RootCause>(message);
    connection.socket.send(message, urgent ? kSendTimeout : milliseconds(0));
  }

  const BoardOptions options_;
  const std::function<void(const RootCause&)> on_failure_;
  Fd listener_, wake_;
  std::list<Connection> connections_;
  Suspicions suspicions_;
  std::vector<RankRecord> ranks_;
  MeetingRecords reported_;  // of each meeting the latest, whichever rank reported it
  std::optional<Clock::time_point> first_join_;
  Clock::time_point last_tick_ = Clock::now(), round_ = Clock::now();  // one timestamp for all events of a round
  HangLimits limits_;
  double connect_timeout_s_ = 300;
  std::atomic<bool> stopping_ = false, end_expected_ = false;

  mutable std::mutex mutex_;  // guards the two below, which other threads access
  std::vector<ProcessEnd> verdicts_;
  std::optional<RootCause> root_cause_;  // written by the board's thread only
  std::thread thread_;
};

FailureBoard::FailureBoard(BoardOptions options, std::function<void(const RootCause&)> on_failure)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(on_failure))) {}
FailureBoard::~FailureBoard() = default;
int FailureBoard::port() const { return impl_->port(); }
std::optional<RootCause> FailureBoard::root_cause() const { return impl_->root_cause(); }
void FailureBoard::finish() { impl_->finish(); }
void FailureBoard::expect_end() { impl_->expect_end(); }
void FailureBoard::process_ended(ProcessEnd end) { impl_->process_ended(std::move(end)); }

}  // namespace braid
