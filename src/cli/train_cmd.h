// braid train and eval: `braid` checks the recipe and starts ranks; each rank is a `braid-tensors` process.
#pragma once

#include "ckpt/save_lock.h"
#include "cli/command.h"
#include "cli/start.h"
#include "comm/control_line.h"

namespace braid {

struct EvalOptions {
  std::string recipe_path;
  std::optional<int> iterations;
  std::size_t shown = 0;      // answers to print
  std::string answers, page;  // files
  bool json = false, oversubscribe = false;

  bool wants_answers() const { return shown > 0 || !answers.empty() || !page.empty(); }

  std::vector<OutputFile> outputs() const {
    return {{"--answers", answers, {".jsonl"}}, {"--html", page, {".html", ".htm"}}};
  }
};

// They run one rank. Only braid-tensors sets them; `braid` replaces itself with it in a process that is a rank.
struct RankCommands {
  std::function<int(const Recipe& recipe, const Topology& topology, const WorldSpec& spec, const JobIdentity& job,
                    const std::vector<Problem>& problems)>
      train{};
  std::function<int(const EvalOptions& options, const Recipe& recipe, const Topology& topology, const WorldSpec& spec,
                    const std::vector<Problem>& problems)>
      evaluate{};
};
RankCommands rank_commands();

Command train_command(const RankCommands& as_rank = {});
Command eval_command(const RankCommands& as_rank = {});

// What a run that is asked to stop does next.
std::string next_in_words(const Recipe& recipe, const std::optional<RunProgress>& progress);

// The lock of the save folder, which our launcher holds for its ranks. Under another launcher it is not set, and the
// rank that publishes checkpoints takes the lock.
constexpr const char* kHeldLock = "BRAID_SAVE_LOCK";

}  // namespace braid
