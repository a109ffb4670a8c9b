#include "data/batches/mock_data_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "models/configs.h"

namespace braid {
namespace {

void validate_media(const MockMediaConfig& media, const std::string& where, std::vector<Problem>& problems) {
  Checks checks(where);
  if (!(media.share >= 0 && media.share <= 1))
    checks.add("share", fmt::format("share={} must be between 0 and 1", media.share), "use share=0 to 1");
  const auto check_range = [&](const char* least_key, int least, const char* most_key, int most, int limit) {
    checks.size(least_key, least, limit);
    checks.size(most_key, most, limit);
    if (least > most)
      checks.add(least_key, fmt::format("{}={} is more than {}={}", least_key, least, most_key, most),
                 fmt::format("use {}={}", least_key, most));
  };
  check_range("min_items", media.min_items, "max_items", media.max_items, 1 << 10);
  check_range("min_size", media.min_size, "max_size", media.max_size, 1 << 15);
  for (Problem& problem : checks.take()) problems.push_back(std::move(problem));
}

std::int64_t next_multiple(std::int64_t value, std::int64_t of) { return (value / of + 1) * of; }

// Media that never fit would silently turn the run into text only.
std::vector<Problem> room_problems(const MockDataConfig& config, const Provider& provider, int length,
                                   const std::string& where) {
  std::vector<Problem> problems;
  for (const EncoderConfig& encoder : provider.encoders) {
    if (!validate_encoder(provider, encoder, {}, where).empty()) continue;  // its items have no sizes
    const MockMediaConfig& media = mock_of(config, encoder.name);
    const std::int64_t rows = rows_of(encoder, fitting_extent(encoder, media.min_size, media.min_size));
    if (media.share > 0 && rows > length - kRoomForText)
      problems.push_back(
          {fmt::format("the smallest item of {} takes {} tokens, which leaves no room for text in {} tokens",
                       encoder.name, rows, length),
           fmt::format("{}.sequence_length", where),
           fmt::format("use sequence_length={} or more, or media.{}.share=0",
                       (rows + kRoomForText) * std::max(config.packed, 1), encoder.name)});
  }
  return problems;
}

}  // namespace

int piece_length(const MockDataConfig& config, const Provider& provider) {
  return config.sequence_length.value_or(provider.sequence_length) / config.packed;
}

const MockMediaConfig& mock_of(const MockDataConfig& config, const std::string& encoder) {
  static const MockMediaConfig kDefaults;
  for (const MockMediaConfig& media : config.media)
    if (media.name == encoder) return media;
  return kDefaults;
}

void describe(Fields& f, MockMediaConfig& c) {
  f.field("share", c.share, "share of samples with media");
  f.field("min_items", c.min_items, "fewest items in such a sample");
  f.field("max_items", c.max_items, "most items in such a sample");
  f.field("min_size", c.min_size, "shortest side of an image in patches, or fewest frames of an audio clip");
  f.field("max_size", c.max_size, "longest side, or most frames");
}

void describe(Fields& f, MockDataConfig& c) {
  f.field("sequence_length", c.sequence_length, "tokens per sample; default: the model's");
  f.field("packed", c.packed, "sub-sequences per sample, all of the same length");
  f.field("min_length", c.min_length, "fewest tokens of a sub-sequence before the padding; default: no padding");
  f.field("alphabet", c.alphabet, "number of different text tokens");
  f.field("noise", c.noise, "share of tokens that are random");
  f.named("media", c.media);
}

std::vector<Problem> validate(const MockDataConfig& config, const Provider& provider, const LayoutSizes& language,
                              const std::string& where) {
  Checks checks(where);
  const int length = config.sequence_length.value_or(provider.sequence_length);
  checks.size("sequence_length", length);
  const std::int64_t parts = std::int64_t{language.tp} * language.cp;
  if (!checks.failed() && length % parts != 0)
    checks.add("sequence_length",
               fmt::format("sequence_length={} is not divisible by tp={} x cp={}", length, language.tp, language.cp),
               fmt::format("use sequence_length={}", (length + parts - 1) / parts * parts));
  if (length >= 1 && length < kRoomForText)
    checks.add("sequence_length", fmt::format("sequence_length={} is too short to learn from", length),
               fmt::format("use sequence_length={} or more", kRoomForText));
  checks.size("packed", config.packed, std::max(length / kRoomForText, 1));
  if (!checks.failed() && length % config.packed != 0)
    checks.add("packed", fmt::format("sequence_length={} is not divisible by packed={}", length, config.packed),
               fmt::format("use sequence_length={}, or another packed",
                           next_multiple(length, std::lcm(parts, config.packed))));
  const int piece = length / std::max(config.packed, 1), shortest = config.min_length.value_or(piece);
  if (config.min_length && (shortest < kRoomForText || shortest > piece))
    checks.add("min_length",
               fmt::format("min_length={} must be between {} and {}, the tokens of a sub-sequence", shortest,
                           kRoomForText, piece),
               fmt::format("use min_length={}", piece));
  int most = vocab_of(provider.language) - 1;
  for (const EncoderConfig& encoder : provider.encoders)
    if (encoder.token_id > 1) most = std::min(most, encoder.token_id - 1);
  if (most >= 1 && config.alphabet > most)
    checks.add(
        "alphabet",
        fmt::format("alphabet={} needs the tokens 1 to {}, but those from {} on belong to encoders or are outside "
                    "the vocabulary",
                    config.alphabet, config.alphabet, most + 1),
        fmt::format("use alphabet={} or less, or another token_id for the encoder", std::max(most, 1)));
  checks.size("alphabet", std::min(config.alphabet, 1));
  if (!(config.noise >= 0 && config.noise <= 1))
    checks.add("noise", fmt::format("noise={} must be between 0 and 1", config.noise), "use noise=0 to 1");
  std::vector<Problem> problems = checks.take();
  for (const MockMediaConfig& media : config.media) {
    const std::string here = fmt::format("{}.media.{}", where, media.name);
    std::vector<std::string> names;
    for (const EncoderConfig& encoder : provider.encoders) names.push_back(encoder.name);
    if (std::find(names.begin(), names.end(), media.name) == names.end())
      problems.push_back({fmt::format("{} has no encoder '{}'", provider.name, media.name), here,
                          fmt::format("use one of {}", fmt::join(names, ", "))});
    validate_media(media, here, problems);
  }
  if (problems.empty()) problems = room_problems(config, provider, shortest, where);
  return problems;
}

}  // namespace braid
