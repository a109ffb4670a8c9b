// The order in which Megatron's GPTDataset and BlendedDataset read indexed text, as pure functions.
//
// The sequences of a split, repeated for several epochs and shuffled, are joined to one stream of tokens. The stream is
// cut into samples of `sequence_length` tokens, and the samples are shuffled. Each sample has one more token than its
// length, the first of the next sample: the label of its last token.
#pragma once

#include "base/error.h"

namespace braid {

// "969,30,1": the shares of train, valid and test. The sequences [first, end) of one of them (0, 1 or 2) among `all`.
// ConfigError if the text is not such a list, or if the split gets none.
std::pair<std::int64_t, std::int64_t> sequences_of_split(const std::string& shares, int split, std::int64_t all);

struct GptRequest {
  std::int64_t sequence_length = 0;
  std::optional<std::int64_t> samples{};  // at least; nothing: those of one epoch
  std::int64_t seed = 0;
};

// How often the sequences are repeated. This, the seed and the sequences decide the order.
struct GptEpochs {
  std::int64_t count = 1;
  bool last_apart = false;       // the last epoch is shuffled by itself, since only a small part of it is needed
  std::int64_t samples = 0;      // of all epochs
  std::int64_t first_apart = 0;  // samples before the last epoch, if that is apart
};
// `tokens`: of one epoch. ConfigError if they do not fill one sample, if there are too many samples, or for a seed that
// Megatron does not take.
GptEpochs gpt_epochs(std::int64_t tokens, const GptRequest& request);

struct GptOrder {
  struct Start {              // of a sample
    std::uint32_t place = 0;  // in `sequences`
    std::int32_t offset = 0;  // tokens into that sequence
  };
  std::vector<std::int32_t> sequences{};  // of all epochs; numbers in the file
  std::vector<Start> starts{};            // of the samples before they are shuffled, and the end of the last one
  std::vector<std::uint32_t> shuffle{};   // sample k begins at starts[shuffle[k]]

  std::int64_t samples() const { return std::ssize(shuffle); }
};
// `lengths`: of the split's sequences, the first of which has the number `first`. ConfigError if there are too many.
GptOrder gpt_order(std::int64_t first, std::span<const std::int32_t> lengths, const GptRequest& request);

// Weights as shares of their sum, which is rounded as numpy does it.
std::vector<double> normalized(std::vector<double> weights);

// How many samples each data set of a blend of at least `samples` must have, and how many of the blend come from it.
struct BlendSizes {
  std::vector<std::int64_t> built{};
  std::int64_t all = 0;
};
BlendSizes blend_sizes(const std::vector<double>& shares, std::int64_t samples);

struct BlendOrder {
  std::vector<std::uint16_t> sets{};
  std::vector<std::uint32_t> samples{};  // of the set
};
// The next sample always comes from the data set that is furthest behind its share.
BlendOrder blend_order(const std::vector<double>& shares, std::int64_t size);

std::vector<std::string> words_of(const std::string& text);

// What the argument of --data-path says: prefixes of .bin and .idx files, and weights before each of them, or none.
struct GptPaths {
  std::vector<std::string> prefixes{};
  std::vector<double> weights{};  // none: in proportion to the lengths
};
// ConfigError if some of the prefixes have a weight and others have none.
GptPaths parse_gpt_paths(const std::string& text);

}  // namespace braid
