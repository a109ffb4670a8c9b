#include "predict/step_draws.h"
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include "data/inspect/reports.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr const char* kFix = "write the file again: braid data inspect RECIPE --stats FILE";

// Reads the parts of a file and names the place of a mistake.
class StatsReader {
 public:
  explicit StatsReader(const std::string& path) : path_(path) {}

  DataStats read(const std::string& text) {
    Json json;
    try {
      json = Json::parse(text);
    } catch (const Json::exception& e) {
      fail("", fmt::format("is not JSON: {}", json_error(e.what())));
    }
    if (!json.is_object() || !json.contains("sequences"))
      fail("", "has no \"sequences\": it was written without a tokenizer, or by another command");
    DataStats stats = {.sequence_length = number(json.value("sequence_length", Json()), "sequence_length", 1)};
    for (const Json& name : list(json, "encoders")) {
      if (!name.is_string()) fail("encoders", "must be names");
      stats.encoders.push_back(name);
    }
    if (json.contains("reading"))
      stats.reading = {seconds(json["reading"], "sequence_s"), seconds(json["reading"], "patch_s")};
    const Json& sequences = list(json, "sequences");
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      place_ = fmt::format("sequences[{}].", i);
      stats.sequences.push_back(sequence(sequences[i], stats));
    }
    place_.clear();
    if (stats.sequences.empty()) fail("sequences", "is empty");
    return stats;
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    const std::string place = place_ + key;
    throw ConfigError({fmt::format("{} {}", place.empty() ? "the file" : place, what), path_, kFix});
  }

  const Json& list(const Json& json, const char* key) const {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_array()) fail(key, "is missing or not a list");
    return *found;
  }

  std::int64_t number(const Json& value, const std::string& key, std::int64_t least) const {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    if (!value.is_number_integer() || value < least || value > kMost)
      fail(key, fmt::format("is {}, but should be a whole number from {} on", value.dump(), least));
    return value;
  }

  double seconds(const Json& json, const char* key) const {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number() || *found < 0)
      fail(fmt::format("reading.{}", key), "should be a number of seconds");
    return *found;
  }

  SampleSizes::Piece piece(const Json& json, const std::string& key) const {
    if (!json.is_array() || json.size() != 4) fail(key, "should have four numbers");
    const SampleSizes::Piece piece = {number(json[0], key, 1), number(json[1], key, 0), number(json[2], key, 0),
                                      number(json[3], key, 0)};
    const std::int64_t span = piece.end_label - piece.first_label;
    if (piece.end_label > piece.tokens || span < piece.labels || (span > 0) != (piece.labels > 0))
      fail(key, fmt::format("has {} labels at {} to {} of {} tokens", piece.labels, piece.first_label, piece.end_label,
                            piece.tokens));
    return piece;
  }

  SampleSizes sequence(const Json& json, const DataStats& stats) const {
    SampleSizes sizes = {.media = std::vector<SampleSizes::Extents>(stats.encoders.size())};
    for (const Json& each : list(json, "pieces"))
      sizes.pieces.push_back(piece(each, fmt::format("pieces[{}]", sizes.pieces.size())));
    if (sizes.pieces.empty()) fail("pieces", "is empty");
    if (sizes.tokens() > stats.sequence_length)
      fail("pieces", fmt::format("have {} tokens, more than a sequence of {}", sizes.tokens(), stats.sequence_length));
    if (!json.contains("media")) return sizes;
    const Json& media = list(json, "media");
    if (media.size() != stats.encoders.size())
      fail("media", fmt::format("has {}, but there are {}", counted(std::ssize(media), "list"),
                                counted(std::ssize(stats.encoders), "encoder")));
    for (std::size_t k = 0; k < media.size(); ++k) {
      if (!media[k].is_array()) fail("media", "should have a list for each encoder");
      for (const Json& item : media[k]) {
        if (!item.is_array() || item.empty()) fail("media", "should have a list of numbers for each item");
        std::vector<std::int64_t>& sides = sizes.media[k].emplace_back();
        for (const Json& side : item) sides.push_back(number(side, "media", 1));
      }
    }
    return sizes;
  }

  const std::string& path_;
  std::string place_{};  // the sequence being read, with a dot
};

// --- steps

std::vector<SampleSizes> draw_mock(const Recipe& recipe, const Topology& topology, std::int64_t first) {
  // The keys of mock samples are not checked in a recipe with a data set.
  for (const ModuleConfig& module : recipe.topology.modules)
    if (module.kind == ModuleKind::Language)
      throw_if_any(validate(recipe.data, recipe.model.model, layout_sizes(module), "data"));
  const MockSizes sizes(recipe.data, recipe.model.model, topology, static_cast<std::uint64_t>(recipe.train.seed));
  std::vector<SampleSizes> samples;
  for (std::int64_t i = 0; i < recipe.train.global_batch; ++i) samples.push_back(sizes.of(first + i));
  return samples;
}

// Adds padding, and orders media by the encoders of the topology.
SampleSizes as_trained(const SampleSizes& stored, const DataStats& stats, const std::vector<std::string>& encoders) {
  SampleSizes sizes = {.pieces = stored.pieces, .media = std::vector<SampleSizes::Extents>(encoders.size())};
  if (const std::int64_t tokens = stored.tokens(); tokens < stats.sequence_length)
    sizes.pieces.push_back({.tokens = stats.sequence_length - tokens});
  for (std::size_t k = 0; k < stats.encoders.size(); ++k)
    sizes.media[std::ranges::find(encoders, stats.encoders[k]) - encoders.begin()] = stored.media[k];
  return sizes;
}

std::vector<SampleSizes> draw_stored(const Recipe& recipe, const Topology& topology, const DataStats& stats,
                                     std::int64_t first) {
  const Provider& provider = recipe.model.model;
  throw_if_any(problems_of(stats, provider, topology, recipe.data.sequence_length.value_or(provider.sequence_length)));
  std::vector<std::string> encoders;
  for (const Module& module : topology.modules())
    if (module.is_encoder) encoders.push_back(module.name);
  std::vector<double> draws(recipe.train.global_batch);
  RandomField(static_cast<std::uint64_t>(recipe.train.seed), "data statistics")
      .fill_uniform(static_cast<std::uint64_t>(first), draws);
  std::vector<SampleSizes> samples;
  for (const double draw : draws) {
    const auto i = static_cast<std::size_t>(draw * static_cast<double>(stats.sequences.size()));
    samples.push_back(as_trained(stats.sequences[i], stats, encoders));
  }
  return samples;
}

// Joins consecutive samples into one replica's text, whose tokens the cp ranks divide in order.
StepSizes::Text text_of(std::vector<SampleSizes>::const_iterator first, std::int64_t count, int cp) {
  StepSizes::Text text = {.sequences = 0};
  for (auto sample = first; sample != first + count; ++sample) {
    text.tokens += sample->tokens();
    text.sequences += std::ssize(sample->pieces);
    text.squares += sample->squares();
  }
  std::int64_t before = 0;
  for (int rank = 1; rank <= cp; ++rank) {
    std::int64_t end = text.tokens * rank / cp, labels = 0;
    for (auto sample = first; sample != first + count; ++sample) {
      labels += sample->labels_before(end);
      end -= sample->tokens();
    }
    text.labels.push_back(labels - std::exchange(before, labels));
  }
  return text;
}

StepSizes assemble(const std::vector<SampleSizes>& samples, const Recipe& recipe, const Topology& topology) {
  const Grid& language = topology.language().dense;
  const std::int64_t micro_batch = recipe.train.micro_batch, in_microbatch = micro_batch * language.size_of("dp");
  StepSizes sizes;
  for (auto first = samples.begin(); first != samples.end(); first += in_microbatch) {
    auto& texts = sizes.text.emplace_back();
    for (auto own = first; own != first + in_microbatch; own += micro_batch)
      texts.push_back(text_of(own, micro_batch, language.size_of("cp")));
  }
  std::size_t encoder = 0;
  for (const Module& module : topology.modules()) {
    auto& of_module = sizes.media.emplace_back(sizes.text.size());
    for (std::size_t i = 0; i < samples.size(); ++i)
      of_module[i / in_microbatch].push_back(module.is_encoder ? samples[i].media[encoder] : StepSizes::Extents());
    encoder += module.is_encoder;
  }
  return sizes;
}

std::vector<SampleSizes> balanced(std::vector<SampleSizes> samples, const Recipe& recipe, const Topology& topology) {
  const auto balance = sample_balance(recipe, topology);
  if (!balance) return samples;
  const int microbatches = microbatches_of(workload_of(recipe), topology);
  std::vector<SampleSizes> ordered;
  for (const std::int64_t sample : balance->order(samples, recipe.train.micro_batch, microbatches))
    ordered.push_back(std::move(samples[sample]));
  return ordered;
}

// Equal items that match a sample's mean number of items and mean number of patches or frames.
StepSizes::Extents mean_media(double items, double area, const EncoderConfig& encoder) {
  if (items == 0) return {};
  const double count = std::max(1.0, std::round(items)), of_item = area / count;
  const auto side = std::llround(extent_dims(encoder.model) == 1 ? of_item : std::sqrt(of_item));
  return StepSizes::Extents(count, fitting_extent(encoder, std::max(1LL, side), std::max(1LL, side)));
}

TypicalSample mean_sample(const Recipe& recipe, const Topology& topology, const std::vector<StepSizes>& steps) {
  const double samples = static_cast<double>(steps.size()) * recipe.train.global_batch;
  double tokens = 0, labels = 0, sequences = 0, squares = 0;
  for (const StepSizes& step : steps)
    for (const auto& replicas : step.text)
      for (const StepSizes::Text& text : replicas) {
        tokens += static_cast<double>(text.tokens) / samples;
        labels +=
            static_cast<double>(std::accumulate(text.labels.begin(), text.labels.end(), std::int64_t{0})) / samples;
        sequences += static_cast<double>(text.sequences) / samples;
        squares += text.squares / samples;
      }
  TypicalSample sample = {.tokens = std::llround(tokens),
                          .labels = std::llround(labels),
                          .sequences = std::max(1LL, std::llround(sequences)),
                          .squares = squares,
                          .value_bytes = steps.front().value_bytes};
  for (std::size_t m = 0; m < topology.modules().size(); ++m) {
    const Module& module = topology.modules()[m];
    double items = 0, area = 0;
    for (const StepSizes& step : steps)
      for (const auto& of_samples : step.media[m])
        for (const StepSizes::Extents& extents : of_samples)
          for (const auto& extent : extents) {
            items += 1 / samples;
            area += static_cast<double>(num_elements(extent)) / samples;
          }
    sample.media.push_back(module.is_encoder ? mean_media(items, area, encoder_of(recipe.model.model, module))
                                             : StepSizes::Extents{});
  }
  return sample;
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
  const bool in_folder = is_folder(path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  const int error = in_folder ? EISDIR : errno;
  if (file && !in_folder) return StatsReader(path).read({std::istreambuf_iterator<char>(file), {}});
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
        if (std::ssize(extent) != extent_dims(encoders[k]->model) ||
            fitting_extent(*encoders[k], extent.front(), extent.back()) != extent)
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

StepSizes draw_step(const Recipe& recipe, const Topology& topology, const DataStats* stats, std::uint64_t step) {
  const std::int64_t first = static_cast<std::int64_t>(step) * recipe.train.global_batch;
  std::vector<SampleSizes> samples =
      stats ? draw_stored(recipe, topology, *stats, first) : draw_mock(recipe, topology, first);
  StepSizes sizes = assemble(balanced(std::move(samples), recipe, topology), recipe, topology);
  const bool has_doubles = !stats && is_mock(recipe.data);  // pixels of a data set are bytes
  sizes.value_bytes.assign(topology.modules().size(), has_doubles ? 8 : 1);
  return sizes;
}

Recipe smallest(Recipe recipe) {
  recipe.topology.colocated = false;
  recipe.topology.world_size = std::nullopt;
  for (ModuleConfig& module : recipe.topology.modules) module = {.name = module.name, .kind = module.kind};
  recipe.train.micro_batch = recipe.train.global_batch = 1;
  recipe.train.prefetch = 0;
  return recipe;
}

TypicalSample typical_sample(const Recipe& given, const DrawStep& draw, int steps) {
  const Recipe recipe = draw ? given : smallest(given);
  const Topology topology(recipe.topology, workload_of(recipe));
  std::vector<StepSizes> all;
  for (int step = 0; step < (draw ? steps : 1); ++step)
    all.push_back(draw ? draw(recipe, topology, step) : full_step(recipe, topology));
  return mean_sample(recipe, topology, all);
}

StepSizes equal_step(const TypicalSample& sample, const Recipe& recipe, const Topology& topology) {
  const Grid& language = topology.language().dense;
  const std::int64_t micro_batch = recipe.train.micro_batch, cp = language.size_of("cp"), dp = language.size_of("dp");
  const std::size_t microbatches = microbatches_of(workload_of(recipe), topology);
  const StepSizes::Text text = {.tokens = micro_batch * sample.tokens,
                                .sequences = micro_batch * sample.sequences,
                                .labels = std::vector<std::int64_t>(cp, micro_batch * sample.labels / cp),
                                .squares = static_cast<double>(micro_batch) * sample.squares};
  StepSizes sizes = {.text{microbatches, std::vector<StepSizes::Text>(dp, text)}, .value_bytes = sample.value_bytes};
  for (const StepSizes::Extents& of_sample : sample.media)
    sizes.media.emplace_back(microbatches, std::vector<StepSizes::Extents>(micro_batch * dp, of_sample));
  return sizes;
}

}  // namespace braid
