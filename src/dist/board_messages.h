// What ranks and the failure board say to each other: one JSON object a line over TCP.
//
//   rank -> board   hello   who it is              board -> rank   welcome  who serves the board
//                   beat    what it is doing                       tick     the board is alive
//                   fail    its own error                          cause    the root cause, the same for
//                   everyone bye     it is done                             close    the run is over
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "dist/progress.h"

namespace braid {

struct RankIdentity {
  int rank = 0;
  std::string host;
  std::string place;  // module and coordinates, e.g. "language[tp=1 cp=0 dp=0 pp=0]"
};

struct RootCause {
  int rank = 0;
  std::string line;  // "rank 3 (host a12, language[tp=1 ...]) failed in all_reduce #7 on language.tp: killed
                     // by SIGKILL"
};

RootCause make_root_cause(const RankIdentity& who, const std::string& op, const std::string& message);

struct Hello {
  RankIdentity who;
  int world_size = 1;
  double hang_limit_s = 300;
};
struct Beat {
  RankStatus status;
};
struct Fail {
  std::string op, message;
  bool consequence =
      false;  // a collective broke, most likely since a peer is gone: waits for a better explanation
};
struct Bye {};
struct Welcome {
  RankIdentity server;  // rank -1: the launcher
};
struct Tick {};
struct Close {};

using BoardMessage = std::variant<Hello, Beat, Fail, Bye, Welcome, Tick, RootCause, Close>;

std::string encode(const BoardMessage& message);              // with the newline
std::optional<BoardMessage> decode(const std::string& line);  // nothing when it is not a message of ours

// Cuts a byte stream into lines. A peer that never ends a line is cut off at a limit.
class LineBuffer {
 public:
  bool append(const char* data, std::size_t size);  // false: the line is too long
  std::optional<std::string> next();

 private:
  std::string pending_;
};

}  // namespace braid
