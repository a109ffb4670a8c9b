// Takes items from several streams in turn, and skips those that have ended.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "data/shards/stream_state.h"

namespace braid {

// A stream has next(), which returns an optional item, save() and restore().
template <class Stream>
class InTurn {
 public:
  void add(std::unique_ptr<Stream> stream) {
    streams_.push_back(std::move(stream));
    ended_.push_back(false);
  }

  // Nothing when all streams have ended; the call after that starts again.
  auto next() -> decltype(std::declval<Stream>().next()) {
    for (std::size_t tried = 0; tried < streams_.size(); ++tried) {
      const std::size_t turn = turn_;
      turn_ = (turn_ + 1) % streams_.size();
      if (ended_[turn]) continue;
      if (auto item = streams_[turn]->next()) return item;
      ended_[turn] = true;
    }
    std::fill(ended_.begin(), ended_.end(), false);
    turn_ = 0;
    return std::nullopt;
  }

  void save(StateWriter& state) const {
    state.number(turn_);
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      state.number(ended_[i]);
      streams_[i]->save(state);
    }
  }

  void restore(StateReader& state) {
    turn_ = state.number(streams_.size() - 1);
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      ended_[i] = state.number(1);
      streams_[i]->restore(state);
    }
  }

 private:
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<bool> ended_;  // of each stream
  std::size_t turn_ = 0;
};

}  // namespace braid
