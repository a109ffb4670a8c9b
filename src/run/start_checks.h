// Checks before any rank starts. `where` of a problem is a recipe key, or several separated by spaces. No libtorch.
#pragma once

#include "run/recipe.h"

namespace braid {

struct Blend;

// --- whether Braid can read the data set and tokenizer, both fit the model, and every lane has samples

// The positions in the data that a checkpoint has stored.
struct StoredData {
  std::vector<std::string> positions{};  // by lane; empty: unknown
  std::optional<std::int64_t> seed{};    // of the stored run; empty: the recipe's
};

struct DataFindings {
  std::vector<Problem> problems{};  // `where` is a dotted recipe key, or several separated by spaces
  std::vector<std::string> warnings{};
  std::shared_ptr<const Blend> evaluated{};  // the evaluation split, if it is used and can be opened
};

// Opens the splits for these uses and checks a few samples of the first one. Training must be able to continue at the
// stored positions; if an evaluation would read text differently than the training did, there is a warning.
DataFindings check_data(const Recipe& recipe, const Topology& topology, const std::vector<DataUse>& uses,
                        const StoredData& stored = {});

// Training and, if the recipe evaluates, evaluation.
std::vector<DataUse> data_uses(const Recipe& recipe);

// --- whether the checkpoint to load exists, is intact, and matches the model and the schedule

struct LoadFindings {
  std::vector<Problem> problems{};
  StoredData data{};  // of the run that is resumed or evaluated
};

// Does not read tensors. A command that only evaluates gets no advice to start from scratch.
LoadFindings check_load(const Recipe& recipe, const Topology& topology, bool only_evaluates = false);

// How a run would start now. DataError if all that its folder has is damaged.
struct RunStart {
  bool resumes = false;
  std::string words{};  // "resumes from ckpt/iter_0000100"; empty: with random weights, since nothing else was asked
};
RunStart find_start(const CheckpointConfig& config);

}  // namespace braid
