#include "data/inspect/pack_report.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

Json media_json(const MediaPlan& media) {
  return {{"picture", media.picture},
          {"width", media.resized.width},
          {"height", media.resized.height},
          {"extent", {media.patches.rows, media.patches.columns}},
          {"embeddings", media.embeddings}};
}

Json sample_json(const ReadSample& sample) {
  Json media = Json::array();
  for (const MediaPlan& input : sample.tokens.media) media.push_back(media_json(input));
  return {{"shard", with_valid_utf8(sample.shard->name)},
          {"key", with_valid_utf8(sample.key)},
          {"length", sample.tokens.ids.size()},
          {"labels", label_count(sample.tokens)},
          {"media", std::move(media)}};
}

}  // namespace

std::int64_t label_count(const TokenSequence& tokens) {
  const std::ptrdiff_t first = std::min<std::ptrdiff_t>(1, std::ssize(tokens.targets));
  return std::count_if(tokens.targets.begin() + first, tokens.targets.end(),
                       [](int target) { return target != kIgnoredTarget; });
}

PackSize size_of(const Pack& pack) {
  PackSize size = {.samples = std::ssize(pack)};
  for (const ReadSample& sample : pack) {
    size.tokens += std::ssize(sample.tokens.ids);
    size.labels += label_count(sample.tokens);
    size.pictures += std::ssize(sample.pictures);
    for (const MediaPlan& media : sample.tokens.media) size.embeddings += media.embeddings;
  }
  return size;
}

// The borders are those that attention gets: padding is a sub-sequence of its own.
Json pack_json(const Pack& pack, std::int64_t sequence_length) {
  Json samples = Json::array(), lengths = Json::array(), borders = {0};
  std::int64_t at = 0;
  for (const ReadSample& sample : pack) {
    samples.push_back(sample_json(sample));
    lengths.push_back(sample.tokens.ids.size());
    borders.push_back(at += std::ssize(sample.tokens.ids));
  }
  if (at < sequence_length) borders.push_back(sequence_length);
  const PackSize size = size_of(pack);
  return {{"samples", std::move(samples)},
          {"lengths", std::move(lengths)},
          {"cu_seqlens", std::move(borders)},
          {"tokens", size.tokens},
          {"padding", sequence_length - size.tokens},
          {"labels", size.labels},
          {"pictures", size.pictures},
          {"embeddings", size.embeddings}};
}

std::string show_packs(const std::vector<PackSize>& packs, std::int64_t sequence_length) {
  std::vector<std::vector<std::string>> rows;
  PackSize all;
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return fmt::format("{:.1f} %",
                       100.0 * static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(whole, 1)));
  };
  for (std::size_t i = 0; i < packs.size(); ++i) {
    const PackSize& pack = packs[i];
    rows.push_back({std::to_string(i), std::to_string(pack.samples), std::to_string(pack.tokens),
                    share(pack.tokens, sequence_length), std::to_string(pack.labels), std::to_string(pack.pictures),
                    std::to_string(pack.embeddings)});
    all.samples += pack.samples - pack.repeated;
    all.repeated += pack.repeated;
    all.tokens += pack.tokens;
  }
  const std::string repeated = all.repeated > 0 ? fmt::format(" ({} repeated)", all.repeated) : "";
  return fmt::format("{}\n{}{} in {} of {} tokens; packing density: {}\n",
                     format_table({"sequence", "samples", "tokens", "full", "labels", "pictures", "embeddings"}, rows),
                     counted(all.samples, "sample"), repeated, counted(std::ssize(packs), "sequence"), sequence_length,
                     share(all.tokens, std::ssize(packs) * sequence_length));
}

std::string show_cut(std::int64_t samples) {
  return samples == 0 ? "" : fmt::format("cut: {} longer than a sequence\n", counted(samples, "sample"));
}

Json skipped_json(const BadSamples& bad) {
  const Json counts = {{"too_long", bad.count(Unfit::TooLong)},
                       {"without_targets", bad.count(Unfit::WithoutTargets)},
                       {"damaged", bad.count()}};
  return {{"skipped", counts}, {"cut", bad.count(Unfit::Cut)}};
}

std::string show_skipped(const BadSamples& bad) {
  return fmt::format("skipped: {} too long, {} with nothing to predict, {} damaged\n{}", bad.count(Unfit::TooLong),
                     bad.count(Unfit::WithoutTargets), bad.count(), show_cut(bad.count(Unfit::Cut)));
}

}  // namespace braid
