#include "data/batches/sample_sizes.h"
#include "base/strings.h"
#include "data/samples/lane_set.h"
#include "paper/stage.h"

namespace braid {
namespace {

// Token i predicts token i + 1.
SampleSizes::Piece piece_of(const TokenSequence& tokens) {
  SampleSizes::Piece piece = {.tokens = std::ssize(tokens.ids)};
  for (std::int64_t i = 0; i + 1 < std::ssize(tokens.targets); ++i) {
    if (tokens.targets[i + 1] == kIgnoredLabel) continue;
    if (piece.labels++ == 0) piece.first_label = i;
    piece.end_label = i + 1;
  }
  return piece;
}

void validate_media(const MockMediaConfig& media, const std::string& where, Problems& problems) {
  Checks checks(where);
  if (!(media.share >= 0 && media.share <= 1))
    checks.add("share", fmt::format("share={} must be between 0 and 1", media.share), "use share=0 to 1");
  for (const auto& [least_key, least, most_key, most, limit] :
       {std::tuple("min_items", media.min_items, "max_items", media.max_items, 1 << 10),
        {"min_size", media.min_size, "max_size", media.max_size, 1 << 15}}) {
    checks.size(least_key, least, limit);
    checks.size(most_key, most, limit);
    if (least > most)
      checks.add(least_key, fmt::format("{}={} is more than {}={}", least_key, least, most_key, most),
                 fmt::format("use {}={}", least_key, most));
  }
  for (Problem& problem : checks.take()) problems.push_back(std::move(problem));
}

// Media that never fit would silently turn the run into text only.
Problems room_problems(const MockDataConfig& config, const Provider& provider, int length, const std::string& where) {
  Problems problems;
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

// A weight costs 2 in forward and, if it trains, 4 in backward.
constexpr double kForward = 2, kTrained = 6;

using Costs = std::vector<std::vector<double>>;

std::vector<double> sums_of(const Costs& costs) {
  std::vector<double> sums(costs.at(0).size());
  for (const auto& sample : costs)
    for (std::size_t m = 0; m < sums.size(); ++m) sums[m] += sample[m];
  return sums;
}

// Relative to the mean of each module. If modules share ranks, each counts by its share of the whole work.
Costs relative(Costs costs, bool modules_share_ranks) {
  const std::vector<double> sums = sums_of(costs);
  const double all = std::accumulate(sums.begin(), sums.end(), 0.0);
  for (auto& sample : costs)
    for (std::size_t m = 0; m < sums.size(); ++m) {
      const double whole = modules_share_ranks ? all : sums[m];
      if (whole > 0) sample[m] *= static_cast<double>(costs.size()) / whole;
    }
  return costs;
}

std::size_t most_uneven_module(const Costs& costs) {
  const std::vector<double> sums = sums_of(costs);
  std::vector<double> squares(sums.size());
  for (std::size_t m = 0; m < sums.size(); ++m) {
    for (const auto& sample : costs) squares[m] += sample[m] * sample[m];
    squares[m] -= sums[m] * sums[m] / static_cast<double>(costs.size());
  }
  return static_cast<std::size_t>(std::ranges::max_element(squares) - squares.begin());
}

struct StepPlaces {
  std::int64_t samples = 1;  // per microbatch
  int microbatches = 1;
  std::vector<std::int64_t> per_replica{};  // by module: samples of a microbatch; may be more than there are here
  bool modules_share_ranks = false;         // otherwise they work at the same time
};

// The work at all places that are taken so far.
class Loads {
 public:
  explicit Loads(const StepPlaces& places) : places_(places) {
    for (const std::int64_t each : places.per_replica) {
      const std::int64_t replicas = (places.samples + each - 1) / each;
      in_microbatch_.emplace_back(index(replicas * places.microbatches));
      in_step_.emplace_back(index(replicas));
    }
  }

  // How much the sum of the squares of relative loads would grow with the sample at this place.
  double growth(const std::vector<double>& cost, std::int64_t place) const {
    double sum = 0;
    for (std::size_t m = 0; m < cost.size(); ++m) {
      const auto samples = static_cast<double>(places_.per_replica[m]), of_step = samples * places_.microbatches;
      sum += cost[m] * (in_microbatch_[m][microbatch_of(m, place)] / (samples * samples) +
                        in_step_[m][replica_of(m, place)] / (of_step * of_step));
    }
    return sum;
  }

  void add(const std::vector<double>& cost, std::int64_t place) {
    for (std::size_t m = 0; m < cost.size(); ++m) {
      in_microbatch_[m][microbatch_of(m, place)] += cost[m];
      in_step_[m][replica_of(m, place)] += cost[m];
    }
  }

 private:
  std::size_t replica_of(std::size_t m, std::int64_t place) const {
    return index(place % places_.samples / places_.per_replica[m]);
  }
  std::size_t microbatch_of(std::size_t m, std::int64_t place) const {
    return index(place / places_.samples) * in_step_[m].size() + replica_of(m, place);
  }

  const StepPlaces& places_;
  std::vector<std::vector<double>> in_microbatch_, in_step_;  // by module, then by (microbatch and) replica
};

// Returns the number of the sample for each place. `costs`: by sample and module.
//
// The costliest sample first, each takes the free place where its work meets the least work of other samples: in the
// same microbatch of the same replica, and in the whole step of that replica, for all modules. If a replica has only
// one sample of a microbatch, in the module whose work varies most, nothing can even out its microbatches; then each
// microbatch gets samples of similar cost, so that replicas that wait for each other in every microbatch wait the
// least.
std::vector<std::int64_t> balanced_order(const Costs& costs, const StepPlaces& places) {
  const Costs relative_costs = relative(costs, places.modules_share_ranks);
  std::vector<double> totals;
  for (const auto& cost : relative_costs) totals.push_back(std::accumulate(cost.begin(), cost.end(), 0.0));
  std::vector<std::int64_t> by_cost(costs.size());
  std::iota(by_cost.begin(), by_cost.end(), 0);
  std::ranges::stable_sort(by_cost, std::greater<>(), [&](std::int64_t sample) { return totals[index(sample)]; });
  const bool gathers_similar = places.per_replica[most_uneven_module(relative_costs)] == 1;

  constexpr std::int64_t kFree = -1;
  std::vector<std::int64_t> order(costs.size(), kFree);
  Loads loads(places);
  for (std::int64_t i = 0; i < std::ssize(by_cost); ++i) {
    const std::int64_t sample = by_cost[index(i)];
    const std::vector<double>& cost = relative_costs[index(sample)];
    const std::int64_t first = gathers_similar ? i / places.samples * places.samples : 0,
                       end = gathers_similar ? first + places.samples : std::ssize(order);
    std::int64_t best = kFree;
    double least = std::numeric_limits<double>::infinity();
    const auto consider = [&](std::int64_t place) {
      if (order[index(place)] != kFree) return;
      const double growth = loads.growth(cost, place);
      if (growth >= least) return;
      best = place;
      least = growth;
    };
    if (sample >= first && sample < end) consider(sample);  // of equally good places its own, then the first
    for (std::int64_t place = first; place < end; ++place) consider(place);
    order[index(best)] = sample;
    loads.add(cost, best);
  }
  return order;
}

}  // namespace

std::vector<MediaToken> media_tokens(const Provider& provider, const Topology& topology) {
  std::vector<MediaToken> tokens;
  for (const Module& module : topology.modules())
    if (const EncoderConfig* encoder = find_encoder(provider, module.name))
      tokens.push_back({encoder->name, encoder->token_id});
  return tokens;
}

std::optional<VisionInput> vision_input(const Provider& provider, const Topology& topology) {
  for (const MediaToken& token : media_tokens(provider, topology)) {
    const EncoderConfig& encoder = encoder_named(provider, token.encoder);
    const auto* radio = std::get_if<RadioConfig>(&encoder.model);
    const auto* clip = std::get_if<ClipConfig>(&encoder.model);
    static_assert(kEncoderKinds == 3, "RADIO and CLIP see images, audio does not");
    if (!radio && !clip) continue;
    VisionInput vision = {.encoder = encoder.name,
                          .patch = radio ? radio->patch : clip->patch,
                          .pixel_shuffle = encoder.pixel_shuffle,
                          .token = encoder.token,
                          .token_id = encoder.token_id,
                          .token_id_key = fmt::format("model.{}.token_id", encoder.name)};
    if (clip) vision.square = clip->patch_side();
    return vision;
  }
  return std::nullopt;
}

std::int64_t SampleSizes::labels_before(std::int64_t token) const {
  std::int64_t sum = 0, begin = 0;
  for (const Piece& piece : pieces) {
    const std::int64_t span = piece.end_label - piece.first_label;
    const std::int64_t covered = std::clamp<std::int64_t>(token - begin - piece.first_label, 0, span);
    if (span > 0) sum += piece.labels * covered / span;
    begin += piece.tokens;
  }
  return sum;
}

SampleSizes sizes_of(const std::vector<ReadSample>& pack, std::int64_t sequence_length, std::size_t encoders,
                     std::size_t pictures) {
  SampleSizes sizes = {.media = std::vector<SampleSizes::Extents>(encoders)};
  std::int64_t tokens = 0;
  for (const ReadSample& sample : pack) {
    sizes.pieces.push_back(piece_of(sample.tokens));
    tokens += sizes.pieces.back().tokens;
    for (const MediaPlan& media : sample.tokens.media)
      sizes.media.at(pictures).push_back({media.patches.rows, media.patches.columns});
  }
  if (tokens < sequence_length) sizes.pieces.push_back({.tokens = sequence_length - tokens});
  return sizes;
}

MockSizes::MockSizes(const MockDataConfig& config, const Provider& provider, const Topology& topology,
                     std::uint64_t seed)
    : config_(config), sequence_length_(piece_length(config, provider)), seed_(seed) {
  const std::vector<MediaToken> tokens = media_tokens(provider, topology);
  for (const EncoderConfig& encoder : provider.encoders) {
    const auto place = std::ranges::find(tokens, encoder.name, &MediaToken::encoder);
    if (place == tokens.end()) continue;
    encoders_.push_back(encoder);
    places_.push_back(static_cast<std::size_t>(place - tokens.begin()));
  }
}

std::int64_t MockSizes::length_of(std::int64_t piece) const {
  MockRandom random(seed_, "mock.length", piece);
  return random.between(config_.min_length.value_or(sequence_length_), sequence_length_);
}

std::vector<MockSizes::Extents> MockSizes::extents_of(std::int64_t piece) const {
  std::vector<Extents> all;
  std::int64_t room = length_of(piece) - kRoomForText;
  for (const EncoderConfig& encoder : encoders_) {
    MockRandom random(seed_, "mock." + encoder.name, piece);
    const MockMediaConfig& mock = mock_of(config_, encoder.name);
    Extents items;
    const bool any = random.uniform() < mock.share;
    const std::int64_t count = any ? random.between(mock.min_items, mock.max_items) : 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = random.between(mock.min_size, mock.max_size);
      const std::vector<std::int64_t> extent =
          fitting_extent(encoder, first, random.between(mock.min_size, mock.max_size));
      const std::int64_t rows = rows_of(encoder, extent);
      if (rows > room) break;
      room -= rows;
      items.push_back(extent);
    }
    all.push_back(std::move(items));
  }
  return all;
}

SampleSizes::Piece MockSizes::piece_of(std::int64_t piece, const std::vector<Extents>& extents) const {
  std::int64_t media = 0;
  for (std::size_t k = 0; k < encoders_.size(); ++k)
    for (const auto& extent : extents[k]) media += rows_of(encoders_[k], extent);
  const std::int64_t first_target = std::max<std::int64_t>(media, 1), length = length_of(piece);
  return {.tokens = sequence_length_,
          .labels = length - first_target,
          .first_label = first_target - 1,
          .end_label = length - 1};
}

SampleSizes MockSizes::of(std::int64_t sample) const {
  SampleSizes sizes = {.media = std::vector<Extents>(encoders_.size())};
  for (std::int64_t piece = sample * config_.packed; piece < (sample + 1) * config_.packed; ++piece) {
    std::vector<Extents> extents = extents_of(piece);
    sizes.pieces.push_back(piece_of(piece, extents));
    for (std::size_t k = 0; k < extents.size(); ++k)
      std::move(extents[k].begin(), extents[k].end(), std::back_inserter(sizes.media[places_[k]]));
  }
  return sizes;
}

const MockMediaConfig& mock_of(const MockDataConfig& config, const std::string& encoder) {
  static const MockMediaConfig kDefaults;
  const auto found = std::ranges::find(config.media, encoder, &MockMediaConfig::name);
  return found == config.media.end() ? kDefaults : *found;
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

Problems validate(const MockDataConfig& config, const Provider& provider, const LayoutSizes& language,
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
  const std::int64_t both = std::lcm(parts, std::max(config.packed, 1));
  if (!checks.failed() && length % config.packed != 0)
    checks.add("packed", fmt::format("sequence_length={} is not divisible by packed={}", length, config.packed),
               fmt::format("use sequence_length={}, or another packed", (length / both + 1) * both));
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
  Problems problems = checks.take();
  const auto names = vector_of<std::string>(provider.encoders, &EncoderConfig::name);
  for (const MockMediaConfig& media : config.media) {
    const std::string here = fmt::format("{}.media.{}", where, media.name);
    if (!contains(names, media.name))
      problems.push_back({fmt::format("{} has no encoder '{}'", provider.name, media.name), here,
                          fmt::format("use one of {}", joined(names, ", "))});
    validate_media(media, here, problems);
  }
  if (problems.empty()) problems = room_problems(config, provider, shortest, where);
  return problems;
}

SampleCosts::SampleCosts(const Provider& provider, const Topology& topology, const std::vector<std::string>& frozen) {
  for (const Module& module : topology.modules()) {
    is_encoder_.push_back(module.is_encoder);
    if (!module.is_encoder) continue;
    Encoder encoder = {.config = encoder_named(provider, module.name)};
    const bool trains = std::find(frozen.begin(), frozen.end(), module.name + ".encoder") == frozen.end();
    const double each = trains ? kTrained : kForward;
    std::visit(
        [&](const auto& c) {
          encoder.per_row = each * c.layers * (4.0 * c.hidden + 2.0 * c.ffn) * c.hidden;
          encoder.per_square = each * c.layers * 2.0 * c.hidden;  // scores, and their product with values
        },
        encoder.config.model);
    double weights = 0;
    for (const ParamSpec& spec : declare_parameters(encoder.config.projector))
      weights += static_cast<double>(num_elements(spec));
    encoder.per_embedding = kTrained * weights;
    encoders_.push_back(std::move(encoder));
  }
  // Only tokens with a label become logits. Operations of attention grow with the product of both arguments.
  per_label_ = kTrained * static_cast<double>(vocab_of(provider.language)) * hidden_of(provider.language);
  const Flops flops = count_flops(provider.language, 1, 1);
  per_token_ = flops.linear + flops.scan - per_label_;
  per_square_ = flops.attention;
}

double SampleCosts::of_media(std::size_t encoder, const SampleSizes::Extents& items) const {
  const Encoder& e = encoders_.at(encoder);
  double sum = 0;
  for (const auto& extent : items) {
    const auto rows = static_cast<double>(hidden_rows_of(e.config.model, extent));
    sum += e.per_row * rows + e.per_square * rows * rows +
           e.per_embedding * static_cast<double>(rows_of(e.config, extent));
  }
  return sum;
}

std::vector<double> SampleCosts::of(const SampleSizes& sample) const {
  std::vector<double> costs;
  std::size_t encoder = 0;
  for (const bool is_encoder : is_encoder_) {
    costs.push_back(is_encoder ? of_media(encoder, sample.media[encoder])
                               : of_text(sample.tokens(), sample.labels(), sample.squares()));
    encoder += is_encoder;
  }
  return costs;
}

int default_balanced_replicas(const Topology& topology) {
  const int replicas = topology.language().dense.size_of("dp");
  int most = 1;
  for (const Module& module : topology.modules())
    if (module.is_encoder) most = std::max(most, replicas / module.dense.size_of("dp"));
  return std::gcd(replicas, most);
}

SampleBalance::SampleBalance(const Provider& provider, const Topology& topology, const std::vector<std::string>& frozen,
                             int replicas)
    : costs_(provider, topology, frozen), replicas_(replicas), colocated_(topology.colocated()) {
  for (const Module& module : topology.modules()) dp_.push_back(module.dense.size_of("dp"));
  language_replicas_ = topology.language().dense.size_of("dp");
}

std::vector<std::int64_t> SampleBalance::order(const std::vector<SampleSizes>& samples, std::int64_t per_replica,
                                               int microbatches) const {
  const std::int64_t in_group = per_replica * replicas_, in_microbatch = std::ssize(samples) / microbatches;
  BRAID_CHECK_EQ(in_microbatch % in_group, 0, "samples of a microbatch in groups of replicas");
  StepPlaces places = {.samples = in_group, .microbatches = microbatches, .modules_share_ranks = colocated_};
  for (const int dp : dp_) places.per_replica.push_back(per_replica * language_replicas_ / dp);
  std::vector<std::int64_t> order(samples.size());
  for (std::int64_t first = 0; first < in_microbatch; first += in_group) {
    // The group's samples, from places of the group to places of all samples given.
    const auto outside = [&](std::int64_t place) {
      return place / in_group * in_microbatch + first + place % in_group;
    };
    Costs costs;
    for (std::int64_t place = 0; place < in_group * microbatches; ++place)
      costs.push_back(costs_.of(samples[index(outside(place))]));
    const std::vector<std::int64_t> of_group = balanced_order(costs, places);
    for (std::int64_t place = 0; place < std::ssize(of_group); ++place)
      order[index(outside(place))] = outside(of_group[index(place)]);
  }
  return order;
}

}  // namespace braid
