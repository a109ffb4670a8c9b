// Checks before any rank starts. Braid must be able to read a recipe's data set and tokenizer, both must fit the model,
// and every lane must have samples. No libtorch here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/lane_options.h"

namespace braid {

// What a checkpoint says about the data that its run has read.
struct StoredData {
  std::vector<std::string> positions{};  // by lane; empty: unknown
  std::optional<std::int64_t> seed{};    // with which a run continues; empty: the recipe's
};

struct DataFindings {
  std::vector<Problem> problems{};  // `where` is a dotted recipe key, or several separated by spaces
  std::vector<std::string> warnings{};
  std::shared_ptr<const Blend> evaluated{};  // the split for evaluation, if it is wanted and can be opened
};

// Opens the splits for these uses, and looks at a few samples of the first. Training must be able to continue at the
// stored positions; an evaluation may read its text otherwise than the training did, with a warning.
DataFindings check_data(const Recipe& recipe, const Topology& topology, const std::vector<DataUse>& uses,
                        const StoredData& stored = {});

// Training, and evaluation if the recipe evaluates.
std::vector<DataUse> data_uses(const Recipe& recipe);

}  // namespace braid
