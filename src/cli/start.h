// Recipes with the keys on the command line; and the start of a command that runs a recipe: it collects all problems
// before any rank starts, then starts its ranks, or finds that it is one of them.
#pragma once

#include "base/config.h"
#include "cluster/local/local_launcher.h"
#include "comm/world_spec.h"
#include "run/output_files.h"
#include "run/recipe.h"

namespace braid {

inline constexpr const char* kTensorProgram = "braid-tensors";  // in the same folder as braid

// Recipe keys on the command line: "--train.lr 1e-4", "--train.lr=1e-4", or one of Megatron's names for them
// ("--train-iters 10"). One ConfigError lists all other arguments; `others` are further options to suggest ("--nodes").
// Flags that request what Braid always does are skipped.
std::vector<ConfigOverride> parse_overrides(const std::vector<std::string>& arguments,
                                            const std::vector<std::string>& others = {});

// A recipe with its flags, which must fit its model.
struct RecipeCall {
  RecipeSource source;
  Recipe recipe;
  std::string already_so;  // flags that request what Braid always does, with reasons; empty: none
};
RecipeCall read_recipe_call(const std::string& path, const std::vector<std::string>& arguments,
                            RecipeChecks checks = RecipeChecks::All);
// For a run: beside the problems of a wrong recipe, it lists the files that the run would miss.
RecipeCall read_recipe_to_run(const std::string& path, const std::vector<std::string>& arguments);

std::string overrides_help();        // every recipe key with its type, default and meaning, by section
std::string short_overrides_help();  // where to find overrides_help()

inline constexpr const char* kFromMegatron = "--from-megatron";  // takes one word, which may begin with --

// The words with every "--train.lr 1e-4" as one word, so that recipe keys may come before the recipe.
std::vector<std::string> join_overrides(const std::vector<std::string>& words);

// The user's command after `--`, in subcommands that take one: the parser never sees it.
std::vector<std::string> words_behind_dashes(const std::vector<std::string>& command_line);

struct StartRequest {
  RecipeSource source;
  std::string log_dir;
  bool oversubscribe = false;
  bool only_evaluates = false;
  std::vector<OutputFile> outputs{};  // besides the log folder and what the recipe names
};

struct StartProblems {
  std::vector<Problem> list{};
  bool ranks_can_meet = true;           // false if the GPUs for the rendezvous are missing
  std::vector<std::string> warnings{};  // which do not keep the run from starting
};

// Without `spec`, this process will start the ranks and checks everything. A rank of Braid's launcher checks nothing,
// since the launcher has done so. Under another launcher, every rank checks its GPUs, the first rank of a host its
// cores and memory, and rank 0 files. Output paths are tested by writing; everything created for that is removed.
StartProblems start_problems(const StartRequest& request, const Recipe& recipe, const Topology& topology,
                             const std::optional<WorldSpec>& spec);

// Replaces keys in `where` by those of their flags on the command line, or else by their lines of the recipe.
std::vector<Problem> located(std::vector<Problem> problems, const RecipeSource& source);

// The ranks that run on this host.
struct RanksHere {
  int first = 0, count = 1;
};

struct HostRoom {
  HostCapacity host{};
  int gpus = 0;                // that ranks use; 0: they compute on the CPU
  std::int64_t gpu_bytes = 0;  // of the smallest; 0: unknown
  bool sees_all_gpus = true;   // false: each rank may have GPUs that others do not see
};

// Whether the ranks of a run have room on their host: cores, memory, and memory of GPUs.
std::vector<Problem> room_problems(const Recipe& recipe, const Topology& topology, const RanksHere& here,
                                   const HostRoom& room);

// ConfigError if other ranks were started than the topology has.
void check_world(const WorldSpec& spec, const Topology& topology);

// Whether this process ends here because of problems. It throws them as a ConfigError, unless another rank of this host
// reports them. Ranks of another launcher that can meet continue, to agree on it.
bool is_refused(const StartProblems& problems, const std::optional<WorldSpec>& spec);

// The command line for a rank, which reads the recipe again although it may have come from a pipe.
std::vector<std::string> rank_command(std::vector<std::string> command_line, const std::string& recipe_path,
                                      const RecipeSource& source);

}  // namespace braid
