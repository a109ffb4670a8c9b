#include "data/inspect/reports.h"
#include <nlohmann/json.hpp>
#include "base/strings.h"
#include "base/utf8.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string percent(std::int64_t part, std::int64_t whole) { return fmt::format("{:.1f} %", 100 * share(part, whole)); }

// Cells of a table.
std::vector<std::string> row(const auto&... values) { return {fmt::format("{}", values)...}; }

std::string listed(const Survey::Counts& counts) {
  std::vector<std::string> words;
  for (const auto& [name, count] : counts) words.push_back(fmt::format("{} {}", count, visible_text(name)));
  return words.empty() ? "none" : joined(words, ", ");
}

Json json_of(const Survey::Counts& counts) {
  Json object = Json::object();
  for (const auto& [name, count] : counts) object[with_valid_utf8(name)] = count;
  return object;
}

Json summary_json(const Distribution& values) {
  return {{"count", values.count()}, {"min", values.min()},         {"median", values.quantile(0.5)},
          {"mean", values.mean()},   {"p90", values.quantile(0.9)}, {"max", values.max()}};
}

std::string show_damaged(const Survey& survey) {
  constexpr std::size_t kMostReasons = 10;  // of several samples, the most frequent first
  if (survey.damaged == 0 && survey.damaged_shards.empty()) return "damaged: none\n";
  std::string text = fmt::format("damaged: {}\n", counted(survey.damaged, "sample"));
  std::vector<std::pair<std::string, std::int64_t>> reasons(survey.reasons.begin(), survey.reasons.end());
  std::erase_if(reasons, [](const auto& reason) { return reason.second < 2; });
  std::ranges::stable_sort(reasons, std::greater<>(), [](const auto& reason) { return reason.second; });
  reasons.resize(std::min(reasons.size(), kMostReasons));
  for (const auto& [reason, count] : reasons)
    text += fmt::format("  {}: {}\n", counted(count, "sample"), visible_text(reason));
  std::int64_t named = std::ssize(survey.first_damaged);
  for (const DamagedShard& shard : survey.damaged_shards) {
    text += fmt::format("  shard {}: {}\n", in_quotes(shard.shard), shard_damage(shard));
    named += shard.samples;
  }
  for (const auto& [shard, key, reason] : survey.first_damaged)
    text += fmt::format("  {} of {}: {}\n", in_quotes(key), in_quotes(shard), visible_text(reason));
  if (survey.damaged > named) text += "  ... (--all-damaged lists all)\n";
  return text;
}

std::string show_cut(std::int64_t samples) {
  return samples == 0 ? "" : fmt::format("cut: {} longer than a sequence\n", counted(samples, "sample"));
}

Json sample_json(const ReadSample& sample) {
  Json media = Json::array();
  for (const MediaPlan& input : sample.tokens.media)
    media.push_back({{"picture", input.picture},
                     {"width", input.resized.width},
                     {"height", input.resized.height},
                     {"extent", {input.patches.rows, input.patches.columns}},
                     {"embeddings", input.embeddings}});
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

double SurveyReport::packing_density() const { return share(survey.packed_tokens, survey.sequences * sequence_length); }

std::string show_survey(const SurveyReport& report) {
  const Survey& survey = report.survey;
  Rows sets, rows;
  for (const DataSetCount& set : report.data_sets)
    sets.push_back(row(visible_text(set.path), set.split, set.shards, set.samples));
  std::string text = format_table({"data set", "split", "shards", "samples"}, sets);
  text += fmt::format("\nof {} ({}):\nparts: {}\npictures: {}\n", counted(survey.samples, "sample"),
                      readable_bytes(survey.stored_bytes), listed(survey.parts), listed(survey.formats));
  if (!survey.fields.empty()) text += fmt::format("fields: {}\n", listed(survey.fields));
  if (!survey.unused.empty()) text += fmt::format("not used: {}\n", listed(survey.unused));
  for (const auto& [name, values] : {std::pair("width (pixels)", &survey.widths),
                                     {"height (pixels)", &survey.heights},
                                     {"embeddings per picture", &survey.embeddings},
                                     {"tokens per sample", &survey.lengths}})
    if (values->count() > 0)
      rows.push_back(row(name, values->min(), values->quantile(0.5), fmt::format("{:.1f}", values->mean()),
                         values->quantile(0.9), values->max()));
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
  for (const auto& [shard, key, reason] : survey.first_damaged)
    damaged.push_back(
        {{"shard", with_valid_utf8(shard)}, {"key", with_valid_utf8(key)}, {"reason", with_valid_utf8(reason)}});
  for (const auto& [shard, samples, reason] : survey.damaged_shards)
    shards.push_back({{"shard", with_valid_utf8(shard)}, {"samples", samples}, {"reason", with_valid_utf8(reason)}});
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
                     {"density", report.packing_density()}};
  return json;
}

Json stats_json(const SurveyReport& report) {
  Json sizes = Json::array();
  for (const auto& [size, count] : report.survey.picture_sizes) sizes.push_back({size.first, size.second, count});
  return {{"samples", report.survey.samples},
          {"sequence_length", report.sequence_length},
          {"lengths", report.survey.lengths.counts()},
          {"embeddings", report.survey.embeddings.counts()},
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
  Rows rows;
  PackSize all;
  for (const PackSize& pack : packs) {
    rows.push_back(row(rows.size(), pack.samples, pack.tokens, percent(pack.tokens, sequence_length), pack.labels,
                       pack.pictures, pack.embeddings));
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
