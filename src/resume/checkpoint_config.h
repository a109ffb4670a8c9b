// What a run saves and what it starts from, as a recipe says it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/config.h"

namespace braid {

struct CheckpointConfig {
  std::string save{};                  // folder; nothing is saved when empty
  std::optional<int> save_interval{};  // iterations between saves; default: only at the end
  std::optional<int> keep_last{};      // default: all stay
  bool async = true;
  bool save_optimizer = true, save_rng = true;
  bool fully_reshardable = true;
  bool overwrite = false;  // save where another run's checkpoints are

  std::string load{};  // at most one of these three
  std::string load_nemotron{};
  std::string load_vision_from{};
  bool must_exist = false;                 // refuse to start afresh where `load` has no checkpoint
  std::string load_fallback = "requeued";  // when to go on from an older one where the newest is damaged
  bool load_optimizer = true, load_scheduler = true, load_rng = true;
  std::string scheduler = "same";  // whose learning rates: those of both, which are the same, or one's
  bool finetune = false;
};

void describe(Fields& fields, CheckpointConfig& config);
std::vector<Problem> validate(const CheckpointConfig& config);  // keys as in a recipe's section "checkpoint"

}  // namespace braid
