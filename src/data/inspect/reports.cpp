#include "data/inspect/reports.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string percent(std::int64_t part, std::int64_t whole) { return fmt::format("{:.1f} %", 100 * share(part, whole)); }

std::string listed(const std::map<std::string, std::int64_t>& counts) {
  std::vector<std::string> words;
  for (const auto& [name, count] : counts) words.push_back(fmt::format("{} {}", count, visible_text(name)));
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ", "));
}

Json json_of(const std::map<std::string, std::int64_t>& counts) {
  Json object = Json::object();
  for (const auto& [name, count] : counts) object[with_valid_utf8(name)] = count;
  return object;
}

Json json_of(const std::map<std::int64_t, std::int64_t>& counts) {
  Json pairs = Json::array();
  for (const auto& [value, count] : counts) pairs.push_back({value, count});
  return pairs;
}

Json summary_json(const Distribution& values) {
  return {{"count", values.count()}, {"min", values.min()},         {"median", values.quantile(0.5)},
          {"mean", values.mean()},   {"p90", values.quantile(0.9)}, {"max", values.max()}};
}

void add_row(std::vector<std::vector<std::string>>& rows, const char* name, const Distribution& values) {
  if (values.count() == 0) return;
  rows.push_back({name, std::to_string(values.min()), std::to_string(values.quantile(0.5)),
                  fmt::format("{:.1f}", values.mean()), std::to_string(values.quantile(0.9)),
                  std::to_string(values.max())});
}

// The reasons of several damaged samples, the most frequent first.
std::vector<std::pair<std::string, std::int64_t>> frequent_reasons(const Survey& survey) {
  constexpr std::size_t kMost = 10;
  std::vector<std::pair<std::string, std::int64_t>> reasons;
  for (const auto& reason : survey.reasons)
    if (reason.second > 1) reasons.push_back(reason);
  std::stable_sort(reasons.begin(), reasons.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  if (reasons.size() > kMost) reasons.resize(kMost);
  return reasons;
}

std::string show_damaged(const Survey& survey) {
  if (survey.damaged == 0 && survey.damaged_shards.empty()) return "damaged: none\n";
  std::string text = fmt::format("damaged: {}\n", counted(survey.damaged, "sample"));
  for (const auto& [reason, count] : frequent_reasons(survey))
    text += fmt::format("  {}: {}\n", counted(count, "sample"), visible_text(reason));
  for (const DamagedShard& shard : survey.damaged_shards)
    text += fmt::format("  shard {}: {}\n", in_quotes(shard.shard), shard_damage(shard));
  std::int64_t named = std::ssize(survey.first_damaged);
  for (const DamagedShard& shard : survey.damaged_shards) named += shard.samples;
  for (const DamagedSample& sample : survey.first_damaged)
    text +=
        fmt::format("  {} of {}: {}\n", in_quotes(sample.key), in_quotes(sample.shard), visible_text(sample.reason));
  if (survey.damaged > named) text += "  ... (--all-damaged lists all)\n";
  return text;
}

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
          {"labels", sample.tokens.labels()},
          {"media", std::move(media)}};
}

}  // namespace

std::string shard_damage(const DamagedShard& shard) {
  const std::string reason = visible_text(shard.reason);
  return shard.samples == 0 ? reason : fmt::format("{} unreadable: {}", counted(shard.samples, "sample"), reason);
}

std::vector<DataSetCount> count_data_sets(const Blend& blend) {
  std::vector<DataSetCount> counts;
  for (const Leaf& leaf : blend.leaves)
    counts.push_back({leaf.data.path, leaf.data.split, std::ssize(leaf.data.shards),
                      leaf.data.samples() - std::ssize(leaf.data.excluded)});
  return counts;
}

double packing_density(const SurveyReport& report) {
  return share(report.survey.packed_tokens, report.survey.sequences * report.sequence_length);
}

std::string show_survey(const SurveyReport& report) {
  const Survey& survey = report.survey;
  std::vector<std::vector<std::string>> sets, rows;
  for (const DataSetCount& set : report.data_sets)
    sets.push_back({visible_text(set.path), set.split, std::to_string(set.shards), std::to_string(set.samples)});
  std::string text = format_table({"data set", "split", "shards", "samples"}, sets);
  text += fmt::format("\nof {} ({}):\nparts: {}\npictures: {}\n", counted(survey.samples, "sample"),
                      readable_bytes(survey.stored_bytes), listed(survey.parts), listed(survey.formats));
  if (!survey.fields.empty()) text += fmt::format("fields: {}\n", listed(survey.fields));
  if (!survey.unused.empty()) text += fmt::format("not used: {}\n", listed(survey.unused));
  add_row(rows, "width (pixels)", survey.widths);
  add_row(rows, "height (pixels)", survey.heights);
  add_row(rows, "embeddings per picture", survey.embeddings);
  add_row(rows, "tokens per sample", survey.lengths);
  if (!rows.empty()) text += "\n" + format_table({"", "min", "median", "mean", "p90", "max"}, rows) + "\n";
  if (report.sequence_length > 0)
    text += fmt::format(
        "packing density: {} ({} of {} tokens); {} of the tokens are predicted\n"
        "skipped: {} too long, {} with nothing to predict\n{}",
        percent(survey.packed_tokens, survey.sequences * report.sequence_length), counted(survey.sequences, "sequence"),
        report.sequence_length, percent(survey.labels, survey.packed_tokens), survey.too_long, survey.without_targets,
        show_cut(survey.cut));
  return text + show_damaged(survey);
}

Json survey_json(const SurveyReport& report) {
  const Survey& survey = report.survey;
  Json sets = Json::array(), damaged = Json::array(), shards = Json::array();
  for (const DataSetCount& set : report.data_sets)
    sets.push_back(
        {{"path", with_valid_utf8(set.path)}, {"split", set.split}, {"shards", set.shards}, {"samples", set.samples}});
  for (const DamagedSample& sample : survey.first_damaged)
    damaged.push_back({{"shard", with_valid_utf8(sample.shard)},
                       {"key", with_valid_utf8(sample.key)},
                       {"reason", with_valid_utf8(sample.reason)}});
  for (const DamagedShard& shard : survey.damaged_shards)
    shards.push_back({{"shard", with_valid_utf8(shard.shard)},
                      {"samples", shard.samples},
                      {"reason", with_valid_utf8(shard.reason)}});
  Json json = {{"data_sets", std::move(sets)},
               {"samples", survey.samples},
               {"stored_bytes", survey.stored_bytes},
               {"parts", json_of(survey.parts)},
               {"fields", json_of(survey.fields)},
               {"unused", json_of(survey.unused)},
               {"pictures",
                {{"formats", json_of(survey.formats)},
                 {"width", summary_json(survey.widths)},
                 {"height", summary_json(survey.heights)}}},
               {"damaged",
                {{"count", survey.damaged},
                 {"reasons", json_of(survey.reasons)},
                 {"samples", std::move(damaged)},
                 {"shards", std::move(shards)}}}};
  if (report.sequence_length == 0) return json;
  json["pictures"]["embeddings"] = summary_json(survey.embeddings);
  json["tokens"] = summary_json(survey.lengths);
  json["skipped"] = {{"too_long", survey.too_long}, {"without_targets", survey.without_targets}};
  json["cut"] = survey.cut;
  json["packing"] = {{"sequence_length", report.sequence_length},
                     {"sequences", survey.sequences},
                     {"tokens", survey.packed_tokens},
                     {"labels", survey.labels},
                     {"density", packing_density(report)}};
  return json;
}

Json stats_json(const SurveyReport& report) {
  Json sizes = Json::array();
  for (const auto& [size, count] : report.survey.picture_sizes) sizes.push_back({size.first, size.second, count});
  return {{"samples", report.survey.samples},
          {"sequence_length", report.sequence_length},
          {"lengths", json_of(report.survey.lengths.counts())},
          {"embeddings", json_of(report.survey.embeddings.counts())},
          {"picture_sizes", std::move(sizes)}};
}

PackSize size_of(const Pack& pack) {
  PackSize size = {.samples = std::ssize(pack)};
  for (const ReadSample& sample : pack) {
    size.tokens += std::ssize(sample.tokens.ids);
    size.labels += sample.tokens.labels();
    size.pictures += std::ssize(sample.pictures);
    size.embeddings += embeddings_of(sample.tokens.media);
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
  for (std::size_t i = 0; i < packs.size(); ++i) {
    const PackSize& pack = packs[i];
    rows.push_back({std::to_string(i), std::to_string(pack.samples), std::to_string(pack.tokens),
                    percent(pack.tokens, sequence_length), std::to_string(pack.labels), std::to_string(pack.pictures),
                    std::to_string(pack.embeddings)});
    all.samples += pack.samples - pack.repeated;
    all.repeated += pack.repeated;
    all.tokens += pack.tokens;
  }
  const std::string repeated = all.repeated > 0 ? fmt::format(" ({} repeated)", all.repeated) : "";
  return fmt::format("{}\n{}{} in {} of {} tokens; packing density: {}\n",
                     format_table({"sequence", "samples", "tokens", "full", "labels", "pictures", "embeddings"}, rows),
                     counted(all.samples, "sample"), repeated, counted(std::ssize(packs), "sequence"), sequence_length,
                     percent(all.tokens, std::ssize(packs) * sequence_length));
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
