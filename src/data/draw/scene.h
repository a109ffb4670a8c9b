// A drawn sample: a picture with a question about it and the answer, or a question without a picture. It depends only
// on the seed and the sample's number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/draw/canvas.h"
#include "data/draw/font.h"

namespace braid {

struct DrawnSample {
  std::string task;  // its name
  std::optional<Image> picture{};
  std::string question{};  // empty: the answer is a caption
  std::string answer{};
};

// colour, shape, count, position, digit, word, caption, text
const std::vector<std::string>& drawing_tasks();

// All words of the questions, the answers and the turns around them.
std::vector<std::string> drawing_words();

// `tasks`: those to choose from. `font`: for digits and words; none if neither is among the tasks.
DrawnSample draw_sample(std::uint64_t seed, std::uint64_t number, const std::vector<std::string>& tasks,
                        const Font* font);

}  // namespace braid
