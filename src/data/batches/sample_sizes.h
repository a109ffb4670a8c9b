// The sizes of a training sample, stored or mock: all that decides how much work it is. And which samples of a step
// train together, so that replicas and microbatches have about equal work. The step's samples stay the same, and its
// loss is a sum over all of them, so only the order of summation changes. No libtorch here.
//
// A place is a sample's position in the step. Places are numbered by microbatch, then in the order of the microbatch's
// samples. Each replica of a module has an equal, consecutive share of a microbatch.
#pragma once

#include "base/config.h"
#include "base/philox.h"
#include "models/providers.h"
#include "plan/topology.h"

namespace braid {

struct MediaToken;
struct ReadSample;
struct VisionInput;

struct MockMediaConfig {
  std::string name{};                // of the encoder
  double share = 0.5;                // of samples with media
  int min_items = 1, max_items = 2;  // in such a sample; fewer where the sequence has no room
  int min_size = 2, max_size = 8;    // sides of an image in patches, or frames of an audio clip
};

struct MockDataConfig {
  std::optional<int> sequence_length{};  // default: the model's
  int packed = 1;                        // sub-sequences per sample, all of the same length
  std::optional<int> min_length{};       // of a sub-sequence's tokens before the padding; default: no padding
  int alphabet = 64;                     // number of different text tokens
  double noise = 0.1;                    // share of random tokens
  std::vector<MockMediaConfig> media{};  // other encoders have the defaults
};

inline constexpr int kRoomForText = 2;  // tokens that every sample has, so that there is something to learn

// Tokens of a sub-sequence.
inline int piece_length(const MockDataConfig& config, const Provider& provider) {
  return config.sequence_length.value_or(provider.sequence_length) / config.packed;
}
const MockMediaConfig& mock_of(const MockDataConfig& config, const std::string& encoder);

void describe(Fields& fields, MockMediaConfig& config);
void describe(Fields& fields, MockDataConfig& config);
std::vector<Problem> validate(const MockDataConfig& config, const Provider& provider, const LayoutSizes& language,
                              const std::string& where);

// The tokens of the topology's encoders, in the order of its modules.
std::vector<MediaToken> media_tokens(const Provider& provider, const Topology& topology);

// Returns nothing if the topology has no encoder for pictures.
std::optional<VisionInput> vision_input(const Provider& provider, const Topology& topology);

struct SampleSizes {
  // A sub-sequence. Its labels are at `first_label` to `end_label` - 1; where other tokens are between them, all count
  // as spread evenly.
  struct Piece {
    std::int64_t tokens = 0, labels = 0, first_label = 0, end_label = 0;
    bool operator==(const Piece&) const = default;
  };
  using Extents = std::vector<std::vector<std::int64_t>>;  // by item, see models/providers.h

  std::vector<Piece> pieces{};   // padding is one, too
  std::vector<Extents> media{};  // by encoder

  std::int64_t tokens() const { return sum_of<std::int64_t>(pieces, &Piece::tokens); }
  std::int64_t labels() const { return sum_of<std::int64_t>(pieces, &Piece::labels); }
  double squares() const {  // sum of the squares of the sub-sequences' lengths
    double sum = 0;
    for (const Piece& piece : pieces) sum += static_cast<double>(piece.tokens) * static_cast<double>(piece.tokens);
    return sum;
  }
  std::int64_t labels_before(std::int64_t token) const;
  bool operator==(const SampleSizes&) const = default;
};

// Of a pack. `pictures`: which of the encoders takes its pictures; it has any only if there is one.
SampleSizes sizes_of(const std::vector<ReadSample>& pack, std::int64_t sequence_length, std::size_t encoders,
                     std::size_t pictures);

// Random numbers in order from a separate stream for each sample.
class MockRandom {
 public:
  MockRandom(std::uint64_t seed, const std::string& name, std::int64_t sample)
      : field_(seed, name), index_(static_cast<std::uint64_t>(sample) << 20) {}
  double uniform() { return field_.uniform(index_++); }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::min(high, low + static_cast<std::int64_t>(uniform() * static_cast<double>(high - low + 1)));
  }

 private:
  const RandomField field_;
  std::uint64_t index_;
};

// The sizes of mock samples. They depend only on the seed and the sample number.
class MockSizes {
 public:
  using Extents = SampleSizes::Extents;

  MockSizes(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed);

  // The provider's encoders that the topology has, in the provider's order.
  const std::vector<EncoderConfig>& encoders() const { return encoders_; }

  // The sizes of a sub-sequence.
  std::int64_t length_of(std::int64_t piece) const;           // without padding
  std::vector<Extents> extents_of(std::int64_t piece) const;  // by encoder
  SampleSizes::Piece piece_of(std::int64_t piece, const std::vector<Extents>& extents) const;

  // The sizes of a sample, which packs config.packed sub-sequences. Media are in the order of the topology's encoders.
  SampleSizes of(std::int64_t sample) const;

 private:
  const MockDataConfig config_;
  const int sequence_length_;  // of each sub-sequence
  const std::uint64_t seed_;
  std::vector<EncoderConfig> encoders_;
  std::vector<std::size_t> places_;  // of each encoder among those of the topology
};

// How much work a sample is for each module of a model, in floating point operations.
class SampleCosts {
 public:
  // `frozen`: parameter sets that do not train.
  SampleCosts(const Provider& provider, const Topology& topology, const std::vector<std::string>& frozen);

  // `squares`: the sum of the squares of the sub-sequences' lengths.
  double of_text(double tokens, double labels, double squares) const {
    return per_token_ * tokens + per_square_ * squares + per_label_ * labels;
  }
  double of_media(std::size_t encoder, const SampleSizes::Extents& items) const;  // encoders in the topology's order
  // The cost for each module.
  std::vector<double> of(const SampleSizes& sample) const;

 private:
  struct Encoder {
    EncoderConfig config;
    double per_row = 0, per_square = 0, per_embedding = 0;
  };
  std::vector<Encoder> encoders_;
  std::vector<bool> is_encoder_;  // by module
  double per_token_ = 0, per_square_ = 0, per_label_ = 0;
};

// How many language replicas exchange samples, if the recipe does not say it: as many as an encoder replica serves. Its
// readers have all their samples anyway.
int default_balanced_replicas(const Topology& topology);

// Balances the samples of consecutive language replicas together: all that a reader must know is their samples.
class SampleBalance {
 public:
  // `replicas`: how many language replicas exchange samples; divides their number.
  SampleBalance(const Provider& provider, const Topology& topology, const std::vector<std::string>& frozen,
                int replicas);

  int replicas() const { return replicas_; }
  // Returns the sample for each place. `samples`: of a whole step, or of some groups of replicas(): `per_replica`
  // samples of each language replica and microbatch, numbered as places are.
  std::vector<std::int64_t> order(const std::vector<SampleSizes>& samples, std::int64_t per_replica,
                                  int microbatches) const;

 private:
  const SampleCosts costs_;
  const int replicas_;
  const bool colocated_;
  std::vector<int> dp_;  // by module
  int language_replicas_ = 1;
};

}  // namespace braid
