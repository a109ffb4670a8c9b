// Samples, tokenizers and data sets for tests.
#pragma once

#include "data/draw/data_set.h"
#include "data/image/decode.h"
#include "data/shards/shard.h"
#include "data/text/tokenizer.h"
#include "support/programs.h"

namespace braid::testing {

using Parts = std::vector<std::pair<std::string, std::string>>;  // name and contents

// The parts must live as long as the sample.
inline Sample stored_sample(const Parts& parts) {
  Sample sample = {.key = "0001", .shard = "a.tar"};
  for (const auto& [name, bytes] : parts) sample.parts.push_back({name, bytes});
  return sample;
}

// Every pixel differs from its neighbours.
inline Image some_picture(PixelSize size) {
  Image image(size);
  for (std::size_t i = 0; i < image.byte_count(); ++i)
    image.pixels()[i] = static_cast<std::uint8_t>(i * 37 + i / 101 * 11);
  return image;
}

inline std::string some_png(PixelSize size) { return encode_png(some_picture(size)); }

// 60 drawn samples in 3 shards to train on, 20 in one to evaluate on, and a tokenizer.
inline const std::string& drawn_data() {
  static const TemporaryFolder folder;
  static const bool is_drawn =
      (draw_data_set({.folder = folder.path(), .train = 60, .val = 20, .per_shard = 20}), true);
  return static_cast<void>(is_drawn), folder.path();
}

// One token for each word of drawn data, and <image>.
inline std::shared_ptr<const Tokenizer> word_tokenizer() {
  static const auto tokenizer = std::make_shared<const Tokenizer>(load_tokenizer(drawn_data() + "/tokenizer"));
  return tokenizer;
}

// One shard with a list of samples: key and parts.
inline std::string tar_of(const std::vector<std::pair<std::string, Parts>>& samples) {
  std::string archive;
  for (const auto& [key, parts] : samples)
    for (const auto& [name, bytes] : parts) add_tar_member(archive, key + "." + name, bytes);
  return archive + tar_end_blocks();
}

}  // namespace braid::testing
