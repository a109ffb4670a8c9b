#include "comm/failure_board.h"
#include <list>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/strings.h"

namespace braid {

// --- judgement

namespace {

double stuck_for(const ObservedRank& rank) { return rank.silent_s + rank.status.idle_s; }

// A live rank reports several times a second, so one that is silent for half the limit is not just slow.
bool silent(const ObservedRank& rank, double silence_s) { return !rank.finished && rank.silent_s > silence_s / 2; }

bool arrived(const ObservedRank& rank, const Wait& wait) {
  const auto count = rank.status.arrivals.find(wait.meeting.name);
  return count != rank.status.arrivals.end() && count->second >= wait.arrival;
}

// The ranks that `rank` waits for: members of its meetings that have not arrived, or that have fallen silent there.
std::vector<int> awaited_by(const ObservedRanks& ranks, int rank, double silence_s) {
  std::vector<int> missing;
  for (const Wait& wait : ranks.at(rank).status.waits)
    for (int member : wait.meeting.members) {
      const auto peer = ranks.find(member);
      if (member == rank || peer == ranks.end()) continue;
      if (!arrived(peer->second, wait) || silent(peer->second, silence_s)) missing.push_back(member);
    }
  return missing;
}

// Follows "waits for" from rank to rank, until one is silent or waits for no other, or until a rank repeats: then the
// path ends in a cycle.
std::vector<int> follow(const ObservedRanks& ranks, int start, double silence_s) {
  std::vector<int> path = {start};
  while (true) {
    if (silent(ranks.at(path.back()), silence_s)) return path;
    const std::vector<int> awaited = awaited_by(ranks, path.back(), silence_s);
    if (awaited.empty()) return path;
    // The rank that has been stuck the longest stopped first.
    const int next = *std::ranges::max_element(awaited, {}, [&](int r) { return stuck_for(ranks.at(r)); });
    const bool cycle = std::ranges::find(path, next) != path.end();
    path.push_back(next);
    if (cycle) return path;
  }
}

std::string op_of(const ObservedRank& rank) {
  return rank.status.op.empty() ? "code outside of any operation" : rank.status.op;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fold_ranks(ranks));
}

// "; waiting: ranks 0-2 in all_reduce #7 on world, rank 5 in ..." for all waiting ranks except the culprit.
std::string who_waits(const ObservedRanks& ranks, int culprit) {
  std::map<std::string, std::vector<int>> by_op;
  for (const auto& [number, rank] : ranks)
    if (number != culprit && !rank.status.waits.empty() && !rank.finished) by_op[op_of(rank)].push_back(number);
  std::string text;
  for (const auto& [op, waiting] : by_op)
    text += fmt::format("{}{} in {}", text.empty() ? "; waiting: " : ", ", ranks_text(waiting), op);
  return text;
}

std::string describe(const ObservedRanks& ranks, const std::vector<int>& path, const HangLimits& limits) {
  const int culprit = path.back();
  const ObservedRank& rank = ranks.at(culprit);
  if (std::ranges::count(path, culprit) > 1) {
    const std::vector<int> cycle(std::ranges::find(path, culprit), path.end());
    return fmt::format("deadlock: ranks wait for each other in a cycle: {}", joined(cycle, " -> "));
  }
  if (rank.finished) return "it finished while others still wait for it";
  if (silent(rank, limits.silence_s)) return no_heartbeat(limits.silence_s);
  // A waiting rank may have made its last progress before the culprit did, and so exceeds the limit first: half of it
  // is enough for the culprit.
  if (stuck_for(rank) > limits.progress_s / 2) return fmt::format("hangs: no progress for {:.1f} s", stuck_for(rank));
  return fmt::format("it is busy elsewhere and has kept others waiting for more than {} s", limits.progress_s);
}

// The first rank that has been silent for too long, if there is one.
std::optional<int> gone_silent(const ObservedRanks& ranks, double silence_s) {
  const auto longest = std::ranges::max_element(
      ranks, {}, [](const auto& rank) { return std::pair(!rank.second.finished, rank.second.silent_s); });
  if (longest == ranks.end() || longest->second.finished || longest->second.silent_s <= silence_s) return std::nullopt;
  return longest->first;
}

using RecordOf = std::function<const MeetingRecord&(int rank)>;

// Describes what `odd` communicates at an arrival, the first at which its record and that of `usual` differ. If their
// marks of the arrival before are equal, the operation itself is known.
std::string describe_difference(const MeetingKey& key, const MeetingRecord& odd, const MeetingRecord& usual,
                                std::int64_t arrival, const std::string& usual_ranks) {
  std::int64_t equal = 0;  // the last arrival up to which they agree
  const auto usual_marks = usual.marks_by_arrival();
  for (const auto& [earlier, mark] : odd.marks_by_arrival())
    if (const auto same = usual_marks.find(earlier); same != usual_marks.end() && same->second == mark) equal = earlier;
  const std::string is = odd.content_of(arrival), expected = usual.content_of(arrival);
  if (equal + 1 < arrival || is.empty() || expected.empty())
    return fmt::format("its operations #{} to #{} on {} are not those of {}", equal + 1, arrival, key.name,
                       usual_ranks);
  return fmt::format("its operation #{} on {} is {}, that of {} is {}", arrival, key.name, is, usual_ranks, expected);
}

// The records of these ranks differ.
std::optional<HangDiagnosis> judge_mismatch(const MeetingKey& key, const RecordOf& record_of,
                                            const std::vector<int>& ranks, bool last_chance) {
  std::map<std::int64_t, std::map<std::uint32_t, std::vector<int>>> arrivals;  // by mark: the ranks that have it
  for (const int rank : ranks)
    for (const auto& [arrival, mark] : record_of(rank).marks_by_arrival()) arrivals[arrival][mark].push_back(rank);
  for (const auto& [arrival, marks] : arrivals) {
    if (marks.size() < 2) continue;
    std::vector<std::vector<int>> sides;  // the smallest first
    std::size_t arrived = 0;
    for (const auto& [mark, side] : marks) {
      sides.push_back(side);
      arrived += side.size();
    }
    std::ranges::stable_sort(sides, {}, &std::vector<int>::size);
    const std::vector<int>&odd = sides.front(), &usual = sides.back();
    if (odd.size() == usual.size() && arrived < ranks.size() && !last_chance) continue;
    const std::string difference =
        describe_difference(key, record_of(odd.front()), record_of(usual.front()), arrival, ranks_text(usual));
    return HangDiagnosis{odd.front(), difference + ": one of them left out an operation or communicates another size"};
  }
  return std::nullopt;
}

}  // namespace

HostRanks unreachable_hosts(const ObservedRanks& ranks, double silence_s, const std::string& own_host) {
  const auto first = gone_silent(ranks, silence_s);
  if (!first) return {};
  HostRanks hosts;
  for (const auto& [number, rank] : ranks)
    if (!rank.finished && rank.host != own_host) hosts[rank.host].push_back(number);
  std::erase_if(hosts, [&](const auto& host) {
    return !std::ranges::all_of(host.second, [&](int r) { return silent(ranks.at(r), silence_s); });
  });
  // The rank that fell silent first may have stopped alone, on a host whose other ranks still report.
  return hosts.count(ranks.at(*first).host) ? hosts : HostRanks();
}

std::optional<HangDiagnosis> diagnose_mismatch(const ObservedRanks& ranks, bool last_chance) {
  std::map<MeetingKey, std::vector<int>> meetings;
  for (const auto& [number, rank] : ranks)
    for (const auto& [key, record] : rank.status.records) meetings[key].push_back(number);
  for (const auto& [key, members] : meetings) {
    const auto record_of = [&, &key = key](int rank) -> const MeetingRecord& {
      return ranks.at(rank).status.records.at(key);
    };
    const MeetingRecord& first = record_of(members.front());
    if (std::ranges::all_of(members, [&](int rank) { return record_of(rank).agrees_with(first); })) continue;
    if (auto mismatch = judge_mismatch(key, record_of, members, last_chance)) return mismatch;
  }
  return std::nullopt;
}

std::optional<HangDiagnosis> diagnose_hang(const ObservedRanks& ranks, const HangLimits& limits) {
  if (const auto rank = gone_silent(ranks, limits.silence_s))
    return HangDiagnosis{*rank, no_heartbeat(limits.silence_s) + who_waits(ranks, *rank)};
  const auto longest = std::ranges::max_element(
      ranks, {}, [](const auto& rank) { return rank.second.finished ? -1 : stuck_for(rank.second); });
  if (longest == ranks.end() || longest->second.finished || stuck_for(longest->second) <= limits.progress_s)
    return std::nullopt;
  const std::vector<int> path = follow(ranks, longest->first, limits.silence_s);
  return HangDiagnosis{path.back(), describe(ranks, path, limits) + who_waits(ranks, path.back())};
}

void Suspicions::add(Suspicion suspicion) {
  const auto known = by_rank_.find(suspicion.rank);
  if (known == by_rank_.end() || (!known->second.consequence && suspicion.consequence))
    by_rank_[suspicion.rank] = std::move(suspicion);
}

std::optional<Suspicions::Clock::time_point> Suspicions::lost_at(int rank) const {
  const auto known = by_rank_.find(rank);
  if (known == by_rank_.end() || known->second.consequence) return std::nullopt;
  return known->second.since;
}

bool Suspicions::another_lost_before(int rank, Clock::time_point time) const {
  return std::ranges::any_of(by_rank_, [&](const auto& entry) {
    return entry.first != rank && !entry.second.consequence && entry.second.since < time;
  });
}

std::optional<Suspicion> Suspicions::due(Clock::time_point now, bool final) const {
  const auto likeliest = std::ranges::min_element(
      by_rank_, {}, [](const auto& entry) { return std::pair(entry.second.consequence, entry.second.since); });
  if (likeliest == by_rank_.end()) return std::nullopt;
  const Suspicion& suspicion = likeliest->second;
  const auto wait = suspicion.consequence ? for_origin_ : for_end_;
  return final || now - suspicion.since >= wait ? std::optional(suspicion) : std::nullopt;
}

// --- the board

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{500};
// How long the parent may take to report how a process ended, after its connection was lost.
constexpr milliseconds kEndWait{1500};
// How long the loss of a peer may take to be noticed, after a collective broke because of it.
constexpr milliseconds kConsequenceWait{3000};
constexpr milliseconds kSendTimeout{1000};
// How long the connection of a process that has ended may stay open: its last messages may still be on their way
// through a busy kernel, and a child process may have inherited the connection.
constexpr milliseconds kLastMessages{3000};

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

struct AwaitedEnd {
  ProcessEnd end;
  Clock::time_point since;
};

}  // namespace

class FailureBoard::Impl {
 public:
  Impl(BoardOptions options, std::function<void(const RootCause&)> on_failure)
      : options_(std::move(options)), on_failure_(std::move(on_failure)), listener_(listen_tcp(options_.bind_host, 0)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        suspicions_(options_.ends_follow ? kEndWait : milliseconds(0), kConsequenceWait),
        ranks_(static_cast<std::size_t>(options_.world_size)) {
    for (int rank = 0; rank < options_.world_size; ++rank) {
      const bool known = static_cast<std::size_t>(rank) < options_.rank_coordinates.size();
      // Before a rank joins, its host is known only if a launcher started it: then it is this host.
      ranks_[rank].who = {rank, options_.server.rank < 0 ? host_name() : "unknown",
                          known ? options_.rank_coordinates[rank] : ""};
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

  void process_ended(ProcessEnd end) {
    {
      std::lock_guard lock(mutex_);
      ends_.push_back(std::move(end));
    }
    wake();
  }

  void expect_end() { end_expected_ = true; }

 private:
  void wake() { eventfd_write(wake_.get(), 1); }

  void serve() {
    for (bool last_round = false; !last_round;) {
      const bool stopping = stopping_;
      wait_for_events(stopping && awaited_ends_.empty() ? milliseconds(0) : kTick / 2);
      const auto since_last_round = Clock::now() - std::exchange(round_, Clock::now());
      if (since_last_round > kNotRunning) {
        for (RankRecord& record : ranks_) record.last_heard += since_last_round;
        if (first_join_) *first_join_ += since_last_round;
      }
      {
        const std::lock_guard lock(mutex_);
        for (ProcessEnd& end : std::exchange(ends_, {})) awaited_ends_.push_back({std::move(end), round_});
      }
      for (Connection& connection : connections_)
        if (connection.readable || !awaited_ends_.empty() || stopping) receive(connection);
      connections_.remove_if([](const Connection& c) { return !c.socket.is_open(); });
      while (!awaited_ends_.empty() && has_said_all(awaited_ends_.front())) {
        judge_end(awaited_ends_.front().end);
        awaited_ends_.pop_front();
      }
      last_round = stopping && awaited_ends_.empty();
      if (const auto suspicion = suspicions_.due(Clock::now(), last_round))
        declare(ranks_[suspicion->rank].who, suspicion->op, suspicion->message);
      if (Clock::now() - last_tick_ < kTick) continue;
      last_tick_ = Clock::now();
      judge_hangs();
      broadcast(Tick{});
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
    if ((entries[0].revents & POLLIN) == 0) return;
    Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) connections_.push_back({MessageSocket(std::move(socket))});
  }

  void receive(Connection& connection) {
    connection.socket.receive([&](const BoardMessage& message) { handle(connection, message); });
    if (connection.socket.is_open() || !connection.rank) return;
    const RankRecord& record = ranks_[*connection.rank];
    if (!record.finished) suspicions_.add({record.who.rank, last_seen(record), kEndedWithoutFinishing, round_, false});
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
    if (std::holds_alternative<Bye>(message)) {
      record.finished = true;
      send_to(connection, Close{});
    }
    if (const auto* fail = std::get_if<Fail>(&message)) {
      record.status.op = fail->op;
      judge_failure(record.who.rank, fail->op, fail->message, fail->consequence, round_);
    }
  }

  void join(Connection& connection, const Hello& hello) {
    const bool of_this_run = hello.nonce == options_.nonce && hello.world_size == options_.world_size;
    if (!of_this_run || hello.who.rank < 0 || hello.who.rank >= options_.world_size) return connection.socket.close();
    if (!first_join_) first_join_ = Clock::now();
    connection.rank = hello.who.rank;
    ranks_[hello.who.rank] = {
        .who = hello.who, .status = {}, .last_heard = Clock::now(), .joined = true, .finished = false};
    limits_ = hello.limits();
    connect_timeout_s_ = hello.connect_timeout_s;
    send_to(connection, Welcome{options_.server});
    if (root_cause_) send_to(connection, *root_cause_);
    if (!absent_ranks().empty()) return;
    HostRanks hosts;
    for (const RankRecord& record : ranks_) hosts[record.who.host].push_back(record.who.rank);
    broadcast(Hosts{hosts});
  }

  // The report of an end may arrive before the rank's last messages, but its connection ends after them.
  bool has_said_all(const AwaitedEnd& awaited) const {
    const bool connected = std::ranges::find(connections_, awaited.end.rank, &Connection::rank) != connections_.end();
    return !connected || ranks_[awaited.end.rank].finished || round_ - awaited.since > kLastMessages;
  }

  void judge_end(const ProcessEnd& end) {
    const RankRecord& record = ranks_[end.rank];
    const bool too_early = record.joined && !record.finished;
    if (end.failed || too_early)
      judge_failure(end.rank, last_seen(record), end.how + (end.failed ? "" : " before the run was over"),
                    end.consequence, suspicions_.lost_at(end.rank).value_or(round_));
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

  ObservedRanks observed_ranks() const {
    ObservedRanks observed;
    for (const RankRecord& record : ranks_)
      observed[record.who.rank] = {record.status, seconds_since(record.last_heard), record.finished, record.who.host};
    return observed;
  }

  void judge_hangs() {
    if (!first_join_ || root_cause_) return;
    if (const std::vector<int> absent = absent_ranks(); !absent.empty()) {
      if (seconds_since(*first_join_) >= connect_timeout_s_)
        declare(ranks_[absent.front()].who, "start-up",
                fmt::format("{} did not join the run within {} s", ranks_text(absent), connect_timeout_s_));
      return;
    }
    const ObservedRanks observed = observed_ranks();
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
    declare(ranks_[hang.culprit].who, ranks_[hang.culprit].status.op, hang.message);
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
  std::deque<AwaitedEnd> awaited_ends_;  // of processes, in their order
  MeetingRecords reported_;              // of each meeting the latest, whichever rank reported it
  std::optional<Clock::time_point> first_join_;
  Clock::time_point last_tick_ = Clock::now(), round_ = Clock::now();  // one timestamp for all events of a round
  HangLimits limits_;
  double connect_timeout_s_ = 300;
  std::atomic<bool> stopping_ = false, end_expected_ = false;

  mutable std::mutex mutex_;  // guards the two below, which other threads access
  std::vector<ProcessEnd> ends_;
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
