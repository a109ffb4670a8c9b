#include <csignal>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/process.h"
#include "base/strings.h"
#include "comm/failure_board.h"

namespace braid {

// --- messages

using nlohmann::json;

// {"arrivals": 3, "marks": [[1589432], [], []], "texts": ["all_reduce of 8 Float", "barrier"], "contents": [0, 1, 0]}
// A content is the number of its text.
void to_json(json& j, const MeetingRecord& record) {
  std::vector<std::string> texts;
  std::vector<std::ptrdiff_t> contents;
  for (const std::string& content : record.contents) {
    const auto known = std::find(texts.begin(), texts.end(), content);
    contents.push_back(known - texts.begin());
    if (known == texts.end()) texts.push_back(content);
  }
  j = {{"arrivals", record.arrivals}, {"marks", record.marks}, {"texts", texts}, {"contents", contents}};
}

void from_json(const json& j, MeetingRecord& record) {
  record = {.arrivals = j.at("arrivals"), .marks = j.at("marks").get<decltype(record.marks)>()};
  for (const std::size_t text : j.at("contents")) record.contents.push_back(j.at("texts").at(text));
}

// What messages consist of: their members, by name.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankIdentity, rank, host, coordinates)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MeetingKey, name, members)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Meeting, name, members)  // peers read no more of it
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Wait, meeting, arrival)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankStatus, op, waits, arrivals, records, idle_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hello, who, world_size, hang_limit_s, silence_limit_s, connect_timeout_s, nonce)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Beat, status)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Fail, op, message, consequence)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Welcome, server)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hosts, ranks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RootCause, rank, line)

template <class Message>
requires std::is_empty_v<Message>
void to_json(json& j, const Message&) { j = json::object(); }
template <class Message>
requires std::is_empty_v<Message>
void from_json(const json&, Message&) {}

namespace {

constexpr std::size_t kLongestLine = 1 << 20;

// The type of a message, in the order of the variant.
constexpr std::array<std::string_view, std::variant_size_v<BoardMessage>> kTypes = {
    "hello", "beat", "fail", "bye", "welcome", "hosts", "tick", "cause", "close"};

template <std::size_t kIndex = 0>
std::optional<BoardMessage> message_from(const json& j) {
  if constexpr (kIndex < kTypes.size()) {
    if (j.at("type") != kTypes[kIndex]) return message_from<kIndex + 1>(j);
    return j.get<std::variant_alternative_t<kIndex, BoardMessage>>();
  }
  return std::nullopt;
}

// A root cause must fit one log line, so line breaks in the error's text are replaced.
std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::string line;
  for (char c : text) {
    if (c == '\n')
      line += "; ";
    else if (static_cast<unsigned char>(c) >= 0x20)
      line += c;
  }
  return line;
}

}  // namespace

std::string no_heartbeat(double limit_s) { return fmt::format("no heartbeat for more than {} s", limit_s); }

RootCause make_root_cause(const RankIdentity& who, const std::string& op, const std::string& message) {
  return {who.rank, fmt::format("rank {} (host {}, {}) failed in {}: {}", who.rank, who.host,
                                who.coordinates.empty() ? "module unknown" : who.coordinates,
                                op.empty() ? "code outside of any operation" : one_line(op), one_line(message))};
}

RootCause make_unreachable_cause(const HostRanks& hosts, const std::string& from_host, const std::string& message) {
  std::vector<std::string> names;
  for (const auto& [host, ranks] : hosts)
    names.push_back(fmt::format("{} (rank{} {})", host, ranks.size() > 1 ? "s" : "", fold_ranks(ranks)));
  return {hosts.begin()->second.front(),
          fmt::format("host{} {} cannot be reached from host {}: {}", names.size() > 1 ? "s" : "", joined(names, ", "),
                      from_host, one_line(message))};
}

std::string encode(const BoardMessage& message) {
  // Error texts may hold bytes that are not UTF-8; these are replaced rather than causing an exception.
  json j = std::visit([](const auto& m) { return json(m); }, message);
  j["type"] = kTypes.at(message.index());
  return j.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::optional<BoardMessage> decode(const std::string& line) {
  try {
    return message_from(json::parse(line));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool MessageSocket::receive(const std::function<void(const BoardMessage&)>& handle) {
  char buffer[16384];
  bool arrived = false;
  while (open_) {
    const ssize_t size = recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) break;
    arrived = true;
    if (size > 0) received_.append(buffer, static_cast<std::size_t>(size));
    for (std::size_t end = received_.find('\n'); end != std::string::npos; end = received_.find('\n')) {
      const std::optional<BoardMessage> message = decode(received_.substr(0, end));
      received_.erase(0, end + 1);
      if (message) handle(*message);
    }
    if (size <= 0 || received_.size() > kLongestLine) close();
  }
  return arrived;
}

void MessageSocket::send(const BoardMessage& message, std::chrono::milliseconds timeout) {
  unsent_ += encode(message);
  unsent_.erase(0, send_some(socket_, unsent_, timeout));
}

void MessageSocket::send_rest() { unsent_.erase(0, send_some(socket_, unsent_, std::chrono::milliseconds(0))); }

// --- a rank's client

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kShortestBeat{50};
// Records of what a rank communicates are long, so that they go with few beats: with 200 a second for all ranks.
constexpr milliseconds kRecordsPerRank{5};
constexpr milliseconds kSendTimeout{2000};
// Longer than the board delays a failure that may be a consequence.
constexpr milliseconds kAnswerTimeout{8000};
// The board gets this much more time than a rank before it counts as hung.
constexpr double kBoardSlack_s = 3;
constexpr const char* kMonitorThreadName = "braid-monitor";  // seen by debuggers, and by tests/support/pausing.cpp

}  // namespace

class RankMonitor::Impl {
 public:
  Impl(const Endpoint& board, Hello hello, Progress& progress, std::function<void(const RootCause&)> on_failure,
       milliseconds connect_timeout)
      : hello_(std::move(hello)), progress_(progress), on_failure_(std::move(on_failure)),
        socket_(connect_tcp(board, connect_timeout)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    send(hello_);
    try {
      start_threads();
    } catch (const std::system_error& e) {
      stop_threads();
      throw ConfigError({fmt::format("cannot start a thread: {}", e.code().message()), "", "raise `ulimit -u`"});
    }
  }

  ~Impl() { stop_threads(); }

  RootCause report(const std::string& message, bool consequence) {
    int no_failure = 0;
    const bool crashed_before = !first_failure_.compare_exchange_strong(no_failure, kReported);
    const std::string op = progress_.op_at_failure();
    if (!crashed_before) send(Fail{op, message, consequence});
    std::unique_lock lock(mutex_);
    answered_.wait_for(lock, kAnswerTimeout, [&] { return cause_.has_value(); });
    const RootCause cause = cause_ ? *cause_ : make_root_cause(hello_.who, op, message);
    lock.unlock();
    // Another thread's crash is the cause: that thread ends the process with its signal.
    if (crashed_before && cause.rank == hello_.who.rank) std::this_thread::sleep_for(kAnswerTimeout);
    return cause;
  }

  // Waits for the board to answer: a socket that closes while messages for it are unread discards what it has not sent.
  void goodbye() {
    finished_ = true;
    send(Bye{});
    over_.wait(false);
  }

  void publish_fatal_signal(int signal) noexcept {
    if (std::this_thread::get_id() == thread_.get_id()) return;
    pid_t no_thread = 0;
    const bool first_crash = crashing_thread_.compare_exchange_strong(no_thread, gettid());
    if (!first_crash && no_thread == gettid()) return;  // a crash inside the crash handler
    int no_failure = 0;
    const bool speaks = first_crash && first_failure_.compare_exchange_strong(no_failure, signal);
    if (speaks) eventfd_write(wake_.get(), 1);
    // Once the root cause is known, or if this crash is not the first failure, another thread prints the line and ends
    // the process.
    const timespec pause = {0, 10'000'000};
    for (int waited_ms = 0; !over_; waited_ms += 10) {
      if (waited_ms >= (speaks && !concluded_ ? kSendTimeout : kAnswerTimeout).count()) return;
      nanosleep(&pause, nullptr);
    }
  }

 private:
  void start_threads() {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), kMonitorThreadName);
      watch();
    });
    // A thread of its own: when a kernel hangs, the driver may block whoever asks for the state of its queue.
    device_thread_ = std::thread([this] {
      try {
        for (; !stopping_; std::this_thread::sleep_for(kShortestBeat)) progress_.poll_devices();
      } catch (const std::exception&) {  // the GPU failed, which the rank's own thread reports
      }
    });
  }

  void stop_threads() {
    stopping_ = true;
    eventfd_write(wake_.get(), 1);
    for (std::thread* thread : {&thread_, &device_thread_})
      if (thread->joinable()) thread->join();
  }

  void watch() {
    // Limits the board's load to about a thousand beats a second for any number of ranks.
    const auto beat = std::max(kShortestBeat, milliseconds(hello_.world_size));
    Clock::time_point last_beat = Clock::now() - beat;
    while (!stopping_) {
      pollfd entries[] = {{socket_.is_open() ? socket_.fd() : -1, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      poll(entries, 2, static_cast<int>(beat.count()));
      eventfd_t ignored;
      eventfd_read(wake_.get(), &ignored);
      const auto since_last_round = Clock::now() - std::exchange(round_, Clock::now());
      if (since_last_round > kNotRunning) {
        last_heard_ += since_last_round;
        progress_.forgive(since_last_round);
      }
      if (first_failure_ > 0 && !std::exchange(crash_published_, true))
        send(Fail{progress_.op_at_failure(), describe_signal(first_failure_), false});
      if (socket_.receive([this](const BoardMessage& message) { handle(message); })) last_heard_ = Clock::now();
      if (over_ || concluded_) continue;
      const double silent_s = std::chrono::duration<double>(Clock::now() - last_heard_).count();
      const bool is_silent = silent_s > silence_limit_s() + kBoardSlack_s;
      if (finished_ && (is_silent || !socket_.is_open())) {
        end();
        continue;
      }
      if (!socket_.is_open())
        return conclude(
            about_server(kEndedWithoutFinishing,
                         "the failure board did not accept this rank: it has ended, or it serves another run"));
      if (is_silent) return conclude(about_silent_server());
      if (Clock::now() - last_beat < beat) continue;
      last_beat = Clock::now();
      send_beat();
    }
  }

  void handle(const BoardMessage& message) {
    if (const auto* welcome = std::get_if<Welcome>(&message)) server_ = welcome->server;
    if (const auto* hosts = std::get_if<Hosts>(&message)) hosts_ = hosts->ranks;
    if (std::holds_alternative<Close>(message)) end();
    if (const auto* cause = std::get_if<RootCause>(&message)) conclude(*cause);
  }

  bool launcher_serves() const { return !server_ || server_->rank < 0; }

  // A user may suspend the launcher for a while, and ranks end with their launcher anyway.
  double silence_limit_s() const { return launcher_serves() ? hello_.hang_limit_s : hello_.limits().silence_s; }

  // `unknown`: before the board's welcome. The text is the same on every rank, so that all logs carry the same line.
  RootCause about_server(const std::string& message, const std::string& unknown) const {
    if (!server_) return make_root_cause(hello_.who, "start-up", unknown);
    if (launcher_serves()) return {-1, fmt::format("the launcher on host {} is gone: {}", server_->host, message)};
    return make_root_cause(*server_, "unknown, since it served the failure board", message);
  }

  RootCause about_silent_server() const {
    const std::string silence = no_heartbeat(silence_limit_s());
    if (launcher_serves() || server_->host == hello_.who.host)
      return about_server(silence, "the failure board accepts connections but sends nothing: " + silence);
    const auto known = hosts_.find(server_->host);
    const std::vector<int> ranks = known == hosts_.end() ? std::vector{server_->rank} : known->second;
    return make_unreachable_cause({{server_->host, ranks}}, hello_.who.host, silence);
  }

  void conclude(const RootCause& cause) {
    concluded_ = true;
    {
      std::lock_guard lock(mutex_);
      cause_ = cause;
    }
    answered_.notify_all();
    const int first_failure = first_failure_;
    if (first_failure == kReported) return;  // report() passes the line to the thread that prints it
    // If the crash is the root cause, the rank ends with its signal. If it follows another failure, that cause is
    // printed first.
    const bool own_crash = first_failure > 0 && cause.rank == hello_.who.rank;
    if (!own_crash) on_failure_(cause);
    end();  // last: a crashing thread then ends the process
  }

  void end() {
    over_ = true;
    over_.notify_all();
  }

  void send(const BoardMessage& message) {
    std::lock_guard lock(send_mutex_);
    socket_.send(message, kSendTimeout);
  }

  // Never waits: a board that reads nothing more would otherwise block the thread that must notice this. The next beat
  // carries all the information of a skipped one.
  void send_beat() {
    std::lock_guard lock(send_mutex_);
    if (!socket_.idle()) return socket_.send_rest();
    const bool with_records = Clock::now() - last_records_ >= kRecordsPerRank * hello_.world_size;
    if (with_records) last_records_ = Clock::now();
    socket_.send(Beat{progress_.snapshot(with_records)}, milliseconds(0));
  }

  const Hello hello_;
  Progress& progress_;
  const std::function<void(const RootCause&)> on_failure_;
  MessageSocket socket_;
  Fd wake_;
  std::optional<RankIdentity> server_;  // after the board's welcome
  HostRanks hosts_;                     // once every rank has joined
  Clock::time_point last_heard_ = Clock::now(), round_ = Clock::now(), last_records_{};
  bool crash_published_ = false;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> concluded_ = false;  // the root cause is known
  std::atomic<bool> finished_ = false;   // goodbye() was called
  std::atomic<bool> over_ = false;       // nothing more will be sent
  // The origin of this rank's own failure: a call of report(), or a crash with this signal. Later failures let the
  // first one end the process.
  static constexpr int kReported = -1;
  std::atomic<int> first_failure_ = 0;
  std::atomic<pid_t> crashing_thread_ = 0;
  std::mutex send_mutex_;  // of the socket

  std::mutex mutex_;  // guards the two below
  std::condition_variable answered_;
  std::optional<RootCause> cause_;
  std::thread thread_, device_thread_;
};

RankMonitor::RankMonitor(const Endpoint& board, Hello hello, Progress& progress,
                         std::function<void(const RootCause&)> on_failure, milliseconds connect_timeout)
    : impl_(std::make_unique<Impl>(board, std::move(hello), progress, std::move(on_failure), connect_timeout)) {}
RankMonitor::~RankMonitor() = default;
RootCause RankMonitor::report(const std::string& message, bool consequence) {
  return impl_->report(message, consequence);
}
void RankMonitor::goodbye() { impl_->goodbye(); }
void RankMonitor::publish_fatal_signal(int signal) noexcept { impl_->publish_fatal_signal(signal); }

namespace {

// Global because signal handlers are global to the process.
std::atomic<RankMonitor*> crash_monitor = nullptr;

extern "C" void on_fatal_signal(int signal) {
  if (RankMonitor* monitor = crash_monitor) monitor->publish_fatal_signal(signal);
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
  raise(signal);
}

}  // namespace

CrashHandler::CrashHandler(RankMonitor& monitor) {
  crash_monitor = &monitor;
  // A separate stack lets the handler run after a stack overflow.
  static char stack[64 * 1024];
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, &old_stack_);
  struct sigaction action {};
  action.sa_handler = on_fatal_signal;
  action.sa_flags = SA_ONSTACK;
  for (std::size_t i = 0; i < kFatalSignals.size(); ++i) sigaction(kFatalSignals[i], &action, &old_actions_[i]);
}

CrashHandler::~CrashHandler() {
  crash_monitor = nullptr;
  for (std::size_t i = 0; i < kFatalSignals.size(); ++i) sigaction(kFatalSignals[i], &old_actions_[i], nullptr);
  sigaltstack(&old_stack_, nullptr);
}

BrokenPipeGuard::BrokenPipeGuard() {
  sigaction(SIGPIPE, nullptr, &old_action_);
  if (old_action_.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGPIPE, &action, nullptr);
}

BrokenPipeGuard::~BrokenPipeGuard() { sigaction(SIGPIPE, &old_action_, nullptr); }

}  // namespace braid
