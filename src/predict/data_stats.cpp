#include "predict/data_stats.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/strings.h"
#include "base/utf8.h"
#include "data/inspect/reports.h"
#include "models/providers.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr const char* kFix = "write the file again: braid data inspect RECIPE --stats FILE";

// Reads the parts of a file and names the place of a mistake.
class StatsReader {
 public:
  explicit StatsReader(const std::string& path) : path_(path) {}

  DataStats read(const std::string& text) {
    const Json json = parse(text);
    if (!json.is_object() || !json.contains("sequences"))
      fail("", "has no \"sequences\": it was written without a tokenizer, or by another command");
    DataStats stats = {.sequence_length = number(json, "sequence_length", 1)};
    for (const Json& name : array(json, "encoders", "")) {
      if (!name.is_string()) fail("encoders", "must be names");
      stats.encoders.push_back(name);
    }
    if (json.contains("reading")) stats.reading = reading(json["reading"]);
    const Json& sequences = array(json, "sequences", "");
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      place_ = fmt::format("sequences[{}]", i);
      stats.sequences.push_back(sequence(sequences[i], stats));
    }
    place_.clear();
    if (stats.sequences.empty()) fail("sequences", "is empty");
    return stats;
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    const std::string dot = place_.empty() || key.empty() ? "" : ".", place = place_ + dot + key;
    throw ConfigError({fmt::format("{} {}", place.empty() ? "the file" : place, what), path_, kFix});
  }

  Json parse(const std::string& text) const {
    try {
      return Json::parse(text);
    } catch (const Json::exception& e) {
      fail("", fmt::format("is not JSON: {}", json_error(e.what())));
    }
  }

  const Json& array(const Json& json, const char* key, const std::string& of) const {
    if (!json.is_object() || !json.contains(key) || !json[key].is_array()) fail(of + key, "is missing or not a list");
    return json[key];
  }

  std::int64_t number(const Json& json, const std::string& key, std::int64_t least) const {
    return number_of(json.contains(key) ? json[key] : Json(), key, least);
  }

  std::int64_t number_of(const Json& value, const std::string& key, std::int64_t least) const {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    if (!value.is_number_integer() || value < least || value > kMost)
      fail(key, fmt::format("is {}, but should be a whole number from {} on", value.dump(), least));
    return value;
  }

  ReadingTimes reading(const Json& json) const {
    const auto seconds = [&](const char* key) {
      if (!json.is_object() || !json.contains(key) || !json[key].is_number() || json[key] < 0)
        fail(fmt::format("reading.{}", key), "should be a number of seconds");
      return json[key].get<double>();
    };
    return {seconds("sequence_s"), seconds("patch_s")};
  }

  SampleSizes::Piece piece(const Json& json, const std::string& key) const {
    if (!json.is_array() || json.size() != 4) fail(key, "should have four numbers");
    const SampleSizes::Piece piece = {number_of(json[0], key, 1), number_of(json[1], key, 0),
                                      number_of(json[2], key, 0), number_of(json[3], key, 0)};
    const std::int64_t span = piece.end_label - piece.first_label;
    if (piece.end_label > piece.tokens || span < piece.labels || (span > 0) != (piece.labels > 0))
      fail(key, fmt::format("has {} labels at {} to {} of {} tokens", piece.labels, piece.first_label, piece.end_label,
                            piece.tokens));
    return piece;
  }

  SampleSizes sequence(const Json& json, const DataStats& stats) const {
    SampleSizes sizes = {.media = std::vector<SampleSizes::Extents>(stats.encoders.size())};
    const Json& pieces = array(json, "pieces", "");
    for (std::size_t i = 0; i < pieces.size(); ++i)
      sizes.pieces.push_back(piece(pieces[i], fmt::format("pieces[{}]", i)));
    if (sizes.pieces.empty()) fail("pieces", "is empty");
    if (sizes.tokens() > stats.sequence_length)
      fail("pieces", fmt::format("have {} tokens, more than a sequence of {}", sizes.tokens(), stats.sequence_length));
    if (!json.contains("media")) return sizes;
    const Json& media = array(json, "media", "");
    if (media.size() != stats.encoders.size())
      fail("media", fmt::format("has {}, but there are {}", counted(std::ssize(media), "list"),
                                counted(std::ssize(stats.encoders), "encoder")));
    for (std::size_t k = 0; k < media.size(); ++k) {
      if (!media[k].is_array()) fail("media", "should have a list for each encoder");
      for (const Json& item : media[k]) sizes.media[k].push_back(extent(item));
    }
    return sizes;
  }

  std::vector<std::int64_t> extent(const Json& item) const {
    if (!item.is_array() || item.empty()) fail("media", "should have a list of numbers for each item");
    std::vector<std::int64_t> sides;
    for (const Json& side : item) sides.push_back(number_of(side, "media", 1));
    return sides;
  }

  const std::string path_;
  std::string place_{};  // the sequence being read
};

bool accepts(const EncoderConfig& encoder, const std::vector<std::int64_t>& extent) {
  return std::ssize(extent) == extent_dims(encoder.model) &&
         fitting_extent(encoder, extent.front(), extent.back()) == extent;
}

}  // namespace

nlohmann::ordered_json to_json(const DataStats& stats) {
  nlohmann::ordered_json sequences = nlohmann::ordered_json::array();
  for (const SampleSizes& sizes : stats.sequences) {
    nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
    for (const SampleSizes::Piece& piece : sizes.pieces)
      pieces.push_back({piece.tokens, piece.labels, piece.first_label, piece.end_label});
    sequences.push_back({{"pieces", std::move(pieces)}});
    if (std::ranges::any_of(sizes.media, [](const auto& items) { return !items.empty(); }))
      sequences.back()["media"] = sizes.media;
  }
  nlohmann::ordered_json json = {{"sequence_length", stats.sequence_length}, {"encoders", stats.encoders}};
  if (stats.reading) json["reading"] = {{"sequence_s", stats.reading->sequence_s}, {"patch_s", stats.reading->patch_s}};
  json["sequences"] = std::move(sequences);
  return json;
}

DataStats read_data_stats(const std::string& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  const int error = is_folder ? EISDIR : errno;
  if (file && !is_folder) return StatsReader(path).read({std::istreambuf_iterator<char>(file), {}});
  throw ConfigError({fmt::format("cannot read the data statistics in {}: {}", in_quotes(path), std::strerror(error)),
                     "--stats", kFix});
}

DataStats sample_sequences(const LaneSet& set, std::int64_t count) {
  constexpr int kMostLanes = 8;  // each fills its packing buffers first
  const LaneSetOptions& options = set.options;
  DataStats stats = {.sequence_length = options.sequence_length};
  if (options.vision) stats.encoders = {options.vision->encoder};
  std::int64_t samples = 0;
  for (const Leaf& leaf : set.blend->leaves) samples += leaf.data.samples() - std::ssize(leaf.data.excluded);
  count = std::min(count, samples);
  WorkerPool pool(options.loader.threads);
  const int lanes = static_cast<int>(std::min<std::int64_t>({kMostLanes, options.lanes, count}));
  for (int i = 0; i < lanes; ++i) {
    PackLane lane(set, pool, set.order(), static_cast<int>(std::int64_t{i} * options.lanes / lanes));
    for (std::int64_t n = count * i / lanes; n < count * (i + 1) / lanes; ++n)
      if (const auto pack = lane.next()) stats.sequences.push_back(sizes_of(*pack, 0, stats.encoders.size(), 0));
  }
  return stats;
}

ReadingTimes measure_reading(const LaneSet& set, const DataStats& stats) {
  constexpr double kSeconds = 0.5;
  const LoadPhases measured = measure_phases(set, kSeconds);
  double text = 0, pictures = 0, tokens = 0;
  for (const LoadPhase& phase : measured.phases) (phase.of_pictures ? pictures : text) += phase.seconds;
  for (const SampleSizes& sequence : stats.sequences) tokens += static_cast<double>(sequence.tokens());
  const auto each = [](double seconds, double count) { return count > 0 ? seconds / count : 0; };
  return {each(text, static_cast<double>(measured.tokens)) * each(tokens, static_cast<double>(stats.sequences.size())),
          each(pictures, static_cast<double>(measured.patches))};
}

std::vector<Problem> problems_of(const DataStats& stats, const Provider& provider, const Topology& topology,
                                 std::int64_t sequence_length) {
  std::vector<Problem> problems;
  if (stats.sequence_length != sequence_length)
    problems.push_back({fmt::format("the data statistics are of sequences of {} tokens, but the recipe's have {}",
                                    stats.sequence_length, sequence_length),
                        "data.sequence_length", kFix});
  std::vector<const EncoderConfig*> encoders;
  for (const std::string& name : stats.encoders) {
    const bool has_module = std::ranges::count(topology.modules(), name, &Module::name) > 0;
    encoders.push_back(has_module ? find_encoder(provider, name) : nullptr);
    if (!encoders.back())
      problems.push_back(
          {fmt::format("the data statistics have media for '{}', but no module of the recipe takes them", name),
           "topology.modules", kFix});
  }
  if (!problems.empty()) return problems;
  for (std::size_t i = 0; i < stats.sequences.size(); ++i) {
    std::int64_t rows = 0;
    for (std::size_t k = 0; k < encoders.size(); ++k)
      for (const auto& extent : stats.sequences[i].media[k]) {
        if (!accepts(*encoders[k], extent))
          return {{fmt::format("{} of the recipe does not accept media of size {}, which the data statistics have",
                               encoders[k]->name, fmt::join(extent, " x ")),
                   fmt::format("sequences[{}] of the statistics", i), kFix}};
        rows += rows_of(*encoders[k], extent);
      }
    if (rows > stats.sequences[i].tokens())
      return {{fmt::format("the media of a sequence of the data statistics become {} embeddings, more than its {} "
                           "tokens: they were taken with another model",
                           rows, stats.sequences[i].tokens()),
               fmt::format("sequences[{}] of the statistics", i), kFix}};
  }
  return {};
}

}  // namespace braid
