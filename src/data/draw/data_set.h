// Writes a data set of drawn images, questions and answers, with a tokenizer for its words: something that anyone can
// train on, without downloads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// A byte-level tokenizer.json with one token for each word, turns of chatml, and <image>; ids below 512.
std::string drawing_tokenizer(const std::vector<std::string>& words);

}  // namespace braid
