// Writes a data set of drawn images, questions and answers, with a tokenizer for its words: something that anyone can
// train on, without downloads.
#pragma once

#include "data/image/image.h"

namespace braid {

struct DrawRequest {
  std::string folder{};                   // new or empty
  std::int64_t train = 10000, val = 500;  // samples
  std::int64_t per_shard = 1000;
  std::uint64_t seed = 1;
  std::vector<std::string> tasks{};  // empty: all that this build can draw; repeated ones count once
};

struct Drawn {
  std::int64_t samples = 0, shards = 0, bytes = 0;
  std::vector<std::string> tasks{};
};

// ConfigError if the folder is a file or not empty, or a task is unknown.
Drawn draw_data_set(const DrawRequest& request);

// Letters, cropped to their ink.
struct RenderedText {
  PixelSize size{};
  std::vector<std::uint8_t> coverage{};  // [height, width]; 255: fully
};

// Renders ASCII text whose letters are about `height` pixels high.
using Font = std::function<RenderedText(const std::string& text, int height)>;

// The first of the usual fonts that is installed; empty if there is none, or the build has no FreeType.
Font usual_font();

// An image with a question about it and the answer, or a question without an image. It depends only on the seed and the
// sample's number.
struct DrawnSample {
  std::string task;  // its name
  std::optional<Image> image{};
  std::string question{};  // empty: the answer is a caption
  std::string answer{};
};

inline const std::vector<std::string>& drawing_tasks() {
  static const std::vector<std::string> tasks = {"colour", "shape", "count",   "position",
                                                 "digit",  "word",  "caption", "text"};
  return tasks;
}

// `tasks`: those to choose from. `font`: for digits and words; none if neither is among the tasks.
DrawnSample draw_sample(std::uint64_t seed, std::uint64_t number, const std::vector<std::string>& tasks,
                        const Font& font);

}  // namespace braid
