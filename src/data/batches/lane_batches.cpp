#include "data/batches/lane_batches.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <span>

#include "base/error.h"
#include "data/batches/batch.h"
#include "data/samples/picture_jobs.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

bool takes_pictures(const LaneSetOptions& options, const std::string& encoder) {
  return options.vision && options.vision->encoder == encoder;
}

// Among options.media; its number if none takes pictures.
std::size_t picture_encoder(const LaneSetOptions& options) {
  return static_cast<std::size_t>(
      std::ranges::find_if(options.media, [&](const auto& media) { return takes_pictures(options, media.encoder); }) -
      options.media.begin());
}

// What readers share.
struct LaneSource {
  std::shared_ptr<const LaneSet> set;
  std::shared_ptr<const SampleBalance> balance;  // none: sequences come as lanes give them
  std::vector<std::string> positions{};          // by lane; empty: from the start
};

// The sequences of a reader's samples, microbatch by microbatch.
class ReaderPacks {
 public:
  ReaderPacks(const LaneSource& source, const ReaderSamples& samples)
      : set_(source.set),
        balance_(source.balance),
        samples_(samples),
        per_replica_(samples.all / samples.language_replicas),
        replicas_(replicas_of(samples, per_replica_, balance_ ? balance_->replicas() : 1)),
        lanes_(set_, {static_cast<int>(replicas_.begin), static_cast<int>(replicas_.size()), samples.language_replicas},
               source.positions) {}

  // One pack for each sample of `own`. Sequences of other samples are read too where the same lanes have them.
  std::vector<Pack> next() {
    if (!balance_) return own_of(read());
    if (ordered_.empty()) read_step();
    std::vector<Pack> packs = std::move(ordered_.front());
    ordered_.pop_front();
    return packs;
  }

  // The positions of the first language replica that has any of `own`.
  std::vector<ReplicaLanes::Position> positions() const {
    return lanes_.positions(static_cast<int>(samples_.own.begin / per_replica_ - replicas_.begin));
  }

  BadSamples& bad() { return lanes_.bad(); }
  WorkerPool& pool() { return lanes_.pool(); }

 private:
  // Language replicas that have any of the samples, or exchange samples with one that has.
  static SampleRange replicas_of(const ReaderSamples& samples, std::int64_t per_replica, std::int64_t together) {
    const std::int64_t group = per_replica * together;
    return {samples.own.begin / group * together, (samples.own.end + group - 1) / group * together};
  }

  // A microbatch of all these replicas.
  std::vector<Pack> read() {
    std::vector<Pack> packs;
    for (std::int64_t s = 0; s < replicas_.size() * per_replica_; ++s)
      packs.push_back(lanes_.next(static_cast<int>(s / per_replica_)));
    return packs;
  }

  std::vector<Pack> own_of(std::vector<Pack> packs) const {
    const auto begin = packs.begin() + (samples_.own.begin - replicas_.begin * per_replica_);
    return {std::move_iterator(begin), std::move_iterator(begin + samples_.own.size())};
  }

  void read_step() {
    std::vector<Pack> packs;
    std::vector<SampleSizes> sizes;
    for (int microbatch = 0; microbatch < samples_.microbatches; ++microbatch)
      for (Pack& pack : read()) {
        sizes.push_back(
            sizes_of(pack, set_->options.sequence_length, set_->options.media.size(), picture_encoder(set_->options)));
        packs.push_back(std::move(pack));
      }
    const std::vector<std::int64_t> order = balance_->order(sizes, per_replica_, samples_.microbatches);
    for (auto first = order.begin(); first != order.end(); first += replicas_.size() * per_replica_) {
      std::vector<Pack> microbatch;
      for (auto place = first; place != first + replicas_.size() * per_replica_; ++place)
        microbatch.push_back(std::move(packs[static_cast<std::size_t>(*place)]));
      ordered_.push_back(own_of(std::move(microbatch)));
    }
  }

  const std::shared_ptr<const LaneSet> set_;
  const std::shared_ptr<const SampleBalance> balance_;
  const ReaderSamples samples_;
  const std::int64_t per_replica_;  // samples of a microbatch per language replica
  const SampleRange replicas_;      // language replicas whose lanes are read
  ReplicaLanes lanes_;
  std::deque<std::vector<Pack>> ordered_;  // the rest of a balanced step
};

class LanguageLaneReader : public BatchReader<LanguageBatch> {
 public:
  LanguageLaneReader(const LaneSource& source, const ReaderSamples& samples)
      : set_(source.set), samples_(samples), packs_(source, samples) {}

  LanguageBatch next() override {
    const std::int64_t length = set_->options.sequence_length;
    const at::TensorOptions tokens(at::kLong);
    const std::size_t encoders = set_->options.media.size();
    LanguageBatch batch = {.ids = at::full({samples_.own.size() * length}, 0, tokens),
                           .labels = at::full({samples_.own.size() * length}, kIgnoredLabel, tokens),
                           .offsets = {0},
                           .rows = std::vector<std::vector<std::int64_t>>(encoders),
                           .sequence_of = std::vector<std::vector<std::vector<std::int64_t>>>(encoders)};
    std::int64_t begin = 0;
    for (const Pack& pack : packs_.next()) add(pack, std::exchange(begin, begin + length), batch);
    if (++batches_ % samples_.microbatches == 0)
      for (auto& [lane, text] : packs_.positions()) batch.positions.push_back({lane, std::move(text)});
    return batch;
  }

 private:
  // Each token predicts the next one of its own sample; the rest of the sequence is padding, a sub-sequence of its own.
  void add(const Pack& pack, std::int64_t begin, LanguageBatch& batch) const {
    const std::int64_t end = begin + set_->options.sequence_length;
    auto* ids = batch.ids.data_ptr<std::int64_t>();
    auto* labels = batch.labels.data_ptr<std::int64_t>();
    std::int64_t at = begin, embeddings = 0;
    std::vector<std::int64_t> sequence_of;
    for (const ReadSample& sample : pack) {
      const std::vector<int>& targets = sample.tokens.targets;
      std::copy(sample.tokens.ids.begin(), sample.tokens.ids.end(), ids + at);
      for (std::size_t i = 0; i + 1 < targets.size(); ++i)
        if (targets[i + 1] != kIgnoredTarget) labels[at + static_cast<std::int64_t>(i)] = targets[i + 1];
      at += std::ssize(targets);
      sequence_of.insert(sequence_of.end(), sample.tokens.media.size(), std::ssize(batch.offsets) - 1);
      batch.offsets.push_back(at);
      embeddings += embeddings_of(sample.tokens.media);
    }
    batch.identities.push_back(identity_of(pack));
    if (at < end) batch.offsets.push_back(end);
    for (std::size_t k = 0; k < batch.rows.size(); ++k) {
      const bool sees = takes_pictures(set_->options, set_->options.media[k].encoder);
      batch.rows[k].push_back(sees ? embeddings : 0);
      batch.sequence_of[k].push_back(sees ? sequence_of : std::vector<std::int64_t>());
    }
  }

  const std::shared_ptr<const LaneSet> set_;
  const ReaderSamples samples_;
  ReaderPacks packs_;
  std::int64_t batches_ = 0;  // so far
};

class EncoderLaneReader : public BatchReader<EncoderBatch> {
 public:
  EncoderLaneReader(const LaneSource& source, const ReaderSamples& samples)
      : set_(source.set), packs_(source, samples) {}

  // Pixels of other encoder replicas are not read.
  EncoderBatch next() override {
    EncoderBatch batch;
    const std::vector<Pack> packs = packs_.next();
    std::vector<PictureJob> jobs;
    for (std::size_t s = 0; s < packs.size(); ++s) {
      batch.identities.push_back(identity_of(packs[s]));
      for (const ReadSample& sample : packs[s]) {
        add_picture_jobs(sample, jobs);
        for (const MediaPlan& media : sample.tokens.media) {
          batch.extents.push_back({media.patches.rows, media.patches.columns});
          batch.sample_of.push_back(static_cast<std::int64_t>(s));
        }
      }
    }
    if (jobs.empty()) return batch;
    const int patch = set_->options.vision->patch;
    batch.values = at::empty({patches_of(jobs), std::int64_t{3} * patch * patch}, at::kByte);
    const std::span rows(batch.values.data_ptr<std::uint8_t>(), static_cast<std::size_t>(batch.values.numel()));
    std::vector<char> is_damaged(jobs.size());  // not bool: threads write neighbours
    // The language model already expects the embeddings of a damaged picture, so it becomes zeros.
    packs_.pool().run(jobs.size(), [&](std::size_t i) {
      is_damaged[i] = !decode_into(rows, jobs[i], set_->reader, set_->options.data.pictures, patch, packs_.bad());
    });
    for (std::size_t i = 0; i < jobs.size(); ++i)
      batch.damaged.insert(batch.damaged.end(), jobs[i].inputs.size(), is_damaged[i] != 0);
    return batch;
  }

 private:
  const std::shared_ptr<const LaneSet> set_;
  ReaderPacks packs_;
};

// The same batches from a reader of its own for each language replica.
class PerReplicaReader : public BatchReader<EncoderBatch> {
 public:
  PerReplicaReader(const LaneSource& source, const ReaderSamples& samples) {
    const std::int64_t per_replica = samples.all / samples.language_replicas;
    for (std::int64_t begin = samples.own.begin, end; begin < samples.own.end; begin = end) {
      end = std::min((begin / per_replica + 1) * per_replica, samples.own.end);
      ReaderSamples part = samples;
      part.own = {begin, end};
      readers_.push_back({std::make_unique<EncoderLaneReader>(source, part), end - begin});
    }
  }

  EncoderBatch next() override {
    std::vector<BatchPart> parts;
    for (const auto& [reader, samples] : readers_) parts.push_back({reader->next(), samples});
    return merge(std::move(parts));
  }

 private:
  std::vector<std::pair<std::unique_ptr<EncoderLaneReader>, std::int64_t>> readers_;
};

// The reader of an encoder that does not take pictures.
class NoInputReader : public BatchReader<EncoderBatch> {
 public:
  EncoderBatch next() override { return {}; }
};

class LaneBatches : public BatchSource {
 public:
  explicit LaneBatches(LaneSource source) : source_(std::move(source)) {}

  int lanes() const override { return source_.set->options.lanes; }

  void restore(const std::vector<std::string>& positions) override {
    const LaneSet& set = *source_.set;
    check_positions(set.options, *set.blend, set.sequences.settings(), positions);
    source_.positions = positions;
  }

  std::vector<std::string> positions_after(std::int64_t) const override { return {}; }

  std::unique_ptr<BatchReader<LanguageBatch>> read_language(const ReaderSamples& samples) const override {
    return std::make_unique<LanguageLaneReader>(source_, samples);
  }

  std::unique_ptr<BatchReader<EncoderBatch>> read_encoder(const std::string& encoder,
                                                          const ReaderSamples& samples) const override {
    const LaneSetOptions& options = source_.set->options;
    if (!takes_pictures(options, encoder)) return std::make_unique<NoInputReader>();
    if (options.loader.readers == "per_replica") return std::make_unique<PerReplicaReader>(source_, samples);
    return std::make_unique<EncoderLaneReader>(source_, samples);
  }

 private:
  LaneSource source_;
};

}  // namespace

std::unique_ptr<BatchSource> make_lane_batches(LaneSetOptions options, std::shared_ptr<const SampleBalance> balance) {
  return std::make_unique<LaneBatches>(LaneSource{std::make_shared<LaneSet>(std::move(options)), std::move(balance)});
}

}  // namespace braid
