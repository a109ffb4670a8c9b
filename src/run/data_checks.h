// Checks before any rank starts. Braid must be able to read a recipe's data set and tokenizer, both must fit the model,
// and every lane must have samples. No libtorch here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/lane_options.h"

namespace braid {

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

}  // namespace braid
