// Decides why a run failed. Every rank keeps a connection to the board, which the launcher serves, or rank 0 under
// other launchers. A connection that ends without a bye means that the rank died, whatever killed it. This is noticed
// at once and without false alarms, unlike a missed heartbeat.
//
// The first failure becomes the root cause and is sent to every rank. Errors of collectives usually follow from a
// peer's death, so the board waits a moment for a better explanation. The same holds for any failure after a connection
// was lost, until it is known how that rank ended.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/board_messages.h"

namespace braid {

struct BoardOptions {
  std::string bind_host = "127.0.0.1";  // "" listens on every interface
  RankIdentity server;                  // rank -1: the launcher
  int world_size = 1;
  std::vector<std::string> rank_coordinates;  // module and coordinates of each rank, if the server knows them
  bool verdicts_follow = false;               // process_ended() will be called for every rank
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

  // Must be called in the order in which the processes ended.
  void process_ended(ProcessEnd end);

  // Judges everything reported so far and stops serving; root_cause() is final afterwards.
  void finish();

  // From here on the end of a rank is not a failure: the user is stopping the run.
  void expect_end();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
