// The one place that decides why a run failed. Every rank keeps a connection to it; the launcher, or rank 0
// where no launcher of ours is there, serves it. A connection that ends without a goodbye is a rank that
// died, whatever killed it; that is known at once and without false alarms, which heartbeats alone could not
// give.
//
// The first failure becomes the root cause and is sent to every rank. Errors of collectives are usually
// consequences of a peer's death, so they wait a moment for a better explanation; so does whatever comes after a
// connection was lost, until it is known how that rank ended.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/board_messages.h"

namespace braid {

struct BoardOptions {
  std::string bind_host = "127.0.0.1";  // "" listens on every interface
  RankIdentity server;                  // rank -1: the launcher
  int world_size = 1;
  std::vector<std::string> places;  // module and coordinates of each rank, where the server knows them
  bool verdicts_follow = false;     // process_ended() will be called for each rank
  std::string nonce{};              // who does not bring it in its hello is no rank of this run
};

// How a rank's process ended, as its parent saw it.
struct ProcessEnd {
  int rank = 0;
  std::string how;           // "exited with code 3"
  bool failed = false;       // not exit code 0
  bool consequence = false;  // of a kind that another rank's end causes
};

class FailureBoard {
 public:
  // `on_failure` is called once, from the board's thread, after the ranks have been told.
  FailureBoard(BoardOptions options, std::function<void(const RootCause&)> on_failure);
  ~FailureBoard();  // tells the ranks that the run is over

  int port() const;
  std::optional<RootCause> root_cause() const;

  // To be called in the order in which processes ended.
  void process_ended(ProcessEnd end);

  // Judges what has been reported so far and stops serving; root_cause() is final then.
  void finish();

  // From here on ranks may end as they like: the user stops the run.
  void expect_end();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
