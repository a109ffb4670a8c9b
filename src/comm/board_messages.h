// The protocol between ranks and the failure board: one JSON object per line over TCP.
//
//   rank to board: hello (its identity), beat (what it is doing), fail (its own error), bye (it has finished)
//   board to rank: welcome (who serves the board), hosts (the ranks of each host), tick (the board is alive), cause
//   (the root cause, the same for every rank), close (the run is over)
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/socket.h"
#include "comm/hang_diagnosis.h"
#include "comm/progress.h"

namespace braid {

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

using HostRanks = std::map<std::string, std::vector<int>>;  // host name -> its ranks, ascending

// "host b7 (ranks 2-3) cannot be reached from host a12: ..."; `hosts` must not be empty.
RootCause make_unreachable_cause(const HostRanks& hosts, const std::string& from_host, const std::string& message);

// The message for a rank whose connection ended without a bye; the same on whichever rank notices it.
inline constexpr const char* kEndedWithoutFinishing =
    "its process ended without finishing (killed, crashed or exited early)";

struct Hello {
  RankIdentity who;
  int world_size = 1;
  double hang_limit_s = 300, silence_limit_s = 30, connect_timeout_s = 300;
  std::string nonce{};  // the board's; proves that the rank belongs to this run

  // A silent rank makes no progress either, so the silence limit is at most the hang limit.
  HangLimits limits() const { return {hang_limit_s, std::min(silence_limit_s, hang_limit_s)}; }
};
struct Beat {
  RankStatus status;
};
struct Fail {
  std::string op, message;
  // A collective broke, most likely because a peer died: the board waits for a better explanation.
  bool consequence = false;
};
struct Bye {};
struct Welcome {
  RankIdentity server;  // rank -1: the launcher
};
struct Hosts {  // sent once every rank has joined
  HostRanks ranks;
};
struct Tick {};
struct Close {};

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

}  // namespace braid
