// What decides the sequences of a data set besides its samples and their order.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/samples/data_config.h"
#include "data/samples/vision_input.h"
#include "data/text/tokenizer.h"

namespace braid {

// Names, which are recipe keys where there is one, and values. Settings that change pixels only are not among them.
std::vector<std::pair<std::string, std::string>> sequence_settings(const DataConfig& config, const Tokenizer& tokenizer,
                                                                   const std::optional<VisionInput>& vision,
                                                                   std::int64_t capacity);

}  // namespace braid
