// The recipe's `checkpoint` section: the saves of a run and the checkpoint that it starts from.
#pragma once

#include "base/config.h"

namespace braid {

enum class LoadFallback { Requeued, Always, Never };
constexpr auto choice_names(LoadFallback) { return std::array{"requeued", "always", "never"}; }

enum class ResumeWith { Same, Recipe, Checkpoint };
constexpr auto choice_names(ResumeWith) { return std::array{"same", "recipe", "checkpoint"}; }

// Where the weights of a run come from while its save folder has no complete checkpoint. Nothing else is loaded.
struct InitConfig {
  std::string nemotron{};            // all modules, in Nemotron's naming
  std::string vision{}, language{};  // one module of such a checkpoint
  std::string finetune{};            // all modules, in Braid's naming
};
bool is_given(const InitConfig& init);

struct CheckpointConfig {
  std::string save{};                  // folder; nothing is saved when empty
  std::optional<int> save_interval{};  // iterations between saves; default: only at the end
  std::optional<int> keep_last{};      // default: keep all
  bool async = true;
  bool save_optimizer = true, save_rng = true;
  bool fully_reshardable = true;
  bool overwrite = false;  // replace another run's checkpoints in the folder

  InitConfig init{};   // with it, `load` is the folder to save to
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

void describe(Fields& fields, InitConfig& init);
void describe(Fields& fields, CheckpointConfig& config);
std::vector<Problem> validate(const CheckpointConfig& config);  // keys as in a recipe's section "checkpoint"

// The problem of an init beside a `load` from which no init can follow. A command that only evaluates has no init.
std::vector<Problem> init_problems(const CheckpointConfig& config);

// Weights with which a run starts that does not resume.
struct WeightSource {
  enum class Kind { Nemotron, Vision, Language, Finetune };
  Kind kind;
  std::string key, path;  // the key of the recipe: "checkpoint.init.vision"
};
std::vector<WeightSource> weight_sources(const CheckpointConfig& config);

// Whether the folder that a run saves to has checkpoints of another run.
inline constexpr const char* kSaveKey = "checkpoint.save";

bool is_same_folder(const std::string& a, const std::string& b);

// What a run that resumes leaves behind: "optimizer (load_optimizer=false)"; empty: nothing.
std::string not_resumed(const CheckpointConfig& config);

// Whether the run loads the folder that it saves to, or one of its iterations.
bool resumes_in_place(const CheckpointConfig& config);

// ConfigError if the folder is itself a checkpoint, or has some that this run does not resume from and would replace.
void check_save_folder(const CheckpointConfig& config);

}  // namespace braid
