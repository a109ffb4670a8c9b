// The recipe's `checkpoint` section: the saves of a run and the checkpoint that it starts from.
#pragma once

#include "base/config.h"

namespace braid {

enum class LoadFallback { Requeued, Always, Never };
constexpr auto choice_names(LoadFallback) { return std::array{"requeued", "always", "never"}; }

enum class ResumeWith { Same, Recipe, Checkpoint };
constexpr auto choice_names(ResumeWith) { return std::array{"same", "recipe", "checkpoint"}; }

struct CheckpointConfig {
  std::string save{};                  // folder; nothing is saved when empty
  std::optional<int> save_interval{};  // iterations between saves; default: only at the end
  std::optional<int> keep_last{};      // default: keep all
  bool async = true;
  bool save_optimizer = true, save_rng = true;
  bool fully_reshardable = true;
  bool overwrite = false;  // replace another run's checkpoints in the folder

  std::string load{};  // at most one of these three
  std::string load_nemotron{};
  std::string load_vision_from{};
  bool must_exist = false;  // fail if `load` has no checkpoint
  LoadFallback load_fallback =
      LoadFallback::Requeued;  // when to resume from an older checkpoint if the newest is damaged
  bool load_optimizer = true, load_scheduler = true, load_rng = true;
  bool load_data = true;                    // continue the data set where the checkpoint stopped
  ResumeWith scheduler = ResumeWith::Same;  // whose learning rates to use; "same": both must agree
  bool finetune = false;
};

void describe(Fields& fields, CheckpointConfig& config);
std::vector<Problem> validate(const CheckpointConfig& config);  // keys as in a recipe's section "checkpoint"

// Whether the folder that a run saves to has checkpoints of another run.
inline constexpr const char* kSaveKey = "checkpoint.save";

bool is_same_folder(const std::string& a, const std::string& b);

// Whether the run loads the folder that it saves to, or one of its iterations.
bool resumes_in_place(const CheckpointConfig& config);

// ConfigError if the folder is itself a checkpoint, or has some that this run does not resume from and would replace.
void check_save_folder(const CheckpointConfig& config);

}  // namespace braid
