#include "data/lane_batches.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "data/merge_batches.h"
#include "ops/cross_entropy.h"
#include "samples/picture_jobs.h"

namespace braid {
namespace {

bool takes_pictures(const LaneSetOptions& options, const std::string& encoder) {
  return options.vision && options.vision->encoder == encoder;
}

class LanguageLaneReader : public BatchReader<LanguageBatch> {
 public:
  LanguageLaneReader(std::shared_ptr<const LaneSet> set, const std::vector<std::string>& positions,
                     const ReaderSamples& samples)
      : set_(set),
        samples_(samples),
        lanes_(set, {.first = replica_of(samples), .count = 1, .all = samples.language_replicas}, positions) {}

  LanguageBatch next() override {
    const std::int64_t length = set_->options.sequence_length;
    const at::TensorOptions tokens(at::kLong);
    const std::size_t encoders = set_->options.media.size();
    LanguageBatch batch = {.ids = at::full({samples_.own.size() * length}, 0, tokens),
                           .labels = at::full({samples_.own.size() * length}, kIgnoredLabel, tokens),
                           .offsets = {0},
                           .rows = std::vector<std::vector<std::int64_t>>(encoders),
                           .sequence_of = std::vector<std::vector<std::vector<std::int64_t>>>(encoders)};
    for (std::int64_t s = 0; s < samples_.own.size(); ++s) add(lanes_.next(0), s * length, batch);
    if (++batches_ % samples_.microbatches == 0)
      for (auto& [lane, text] : lanes_.positions()) batch.positions.push_back({lane, std::move(text)});
    return batch;
  }

 private:
  static int replica_of(const ReaderSamples& samples) {
    return static_cast<int>(samples.own.begin / (samples.all / samples.language_replicas));
  }

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
      for (const MediaPlan& media : sample.tokens.media) embeddings += media.embeddings;
    }
    if (at < end) batch.offsets.push_back(end);
    for (std::size_t k = 0; k < batch.rows.size(); ++k) {
      const bool sees = takes_pictures(set_->options, set_->options.media[k].encoder);
      batch.rows[k].push_back(sees ? embeddings : 0);
      batch.sequence_of[k].push_back(sees ? sequence_of : std::vector<std::int64_t>());
    }
  }

  const std::shared_ptr<const LaneSet> set_;
  const ReaderSamples samples_;
  ReplicaLanes lanes_;
  std::int64_t batches_ = 0;  // so far
};

class EncoderLaneReader : public BatchReader<EncoderBatch> {
 public:
  EncoderLaneReader(std::shared_ptr<const LaneSet> set, const std::vector<std::string>& positions,
                    const ReaderSamples& samples)
      : set_(set),
        samples_(samples),
        per_replica_(samples.all / samples.language_replicas),
        replicas_({samples.own.begin / per_replica_, (samples.own.end + per_replica_ - 1) / per_replica_}),
        lanes_(set, {static_cast<int>(replicas_.begin), static_cast<int>(replicas_.size()), samples.language_replicas},
               positions) {}

  // Sequences of other encoder replicas are read too, but not their pixels.
  EncoderBatch next() override {
    EncoderBatch batch;
    std::vector<Pack> packs;
    for (std::int64_t s = replicas_.begin * per_replica_; s < replicas_.end * per_replica_; ++s) {
      Pack pack = lanes_.next(static_cast<int>(s / per_replica_ - replicas_.begin));
      if (s >= samples_.own.begin && s < samples_.own.end) packs.push_back(std::move(pack));
    }
    std::vector<PictureJob> jobs;
    for (std::size_t s = 0; s < packs.size(); ++s)
      for (const ReadSample& sample : packs[s]) {
        add_picture_jobs(sample, jobs);
        for (const MediaPlan& media : sample.tokens.media) {
          batch.extents.push_back({media.patches.rows, media.patches.columns});
          batch.sample_of.push_back(static_cast<std::int64_t>(s));
        }
      }
    if (jobs.empty()) return batch;
    const int patch = set_->options.vision->patch;
    batch.values = at::empty({patches_of(jobs), std::int64_t{3} * patch * patch}, at::kByte);
    const std::span rows(batch.values.data_ptr<std::uint8_t>(), static_cast<std::size_t>(batch.values.numel()));
    std::vector<char> is_damaged(jobs.size());  // not bool: threads write neighbours
    // The language model already expects the embeddings of a damaged picture, so it becomes zeros.
    lanes_.pool().run(jobs.size(), [&](std::size_t i) {
      is_damaged[i] = !decode_into(rows, jobs[i], set_->reader, set_->options.data.pictures, patch, lanes_.bad());
    });
    for (std::size_t i = 0; i < jobs.size(); ++i)
      batch.damaged.insert(batch.damaged.end(), jobs[i].inputs.size(), is_damaged[i] != 0);
    return batch;
  }

 private:
  const std::shared_ptr<const LaneSet> set_;
  const ReaderSamples samples_;
  const std::int64_t per_replica_;  // samples of a microbatch per language replica
  const SampleRange replicas_;      // language replicas that have any of the samples
  ReplicaLanes lanes_;
};

// The same batches from a reader of its own for each language replica.
class PerReplicaReader : public BatchReader<EncoderBatch> {
 public:
  PerReplicaReader(const std::shared_ptr<const LaneSet>& set, const std::vector<std::string>& positions,
                   const ReaderSamples& samples) {
    const std::int64_t per_replica = samples.all / samples.language_replicas;
    for (std::int64_t begin = samples.own.begin, end; begin < samples.own.end; begin = end) {
      end = std::min((begin / per_replica + 1) * per_replica, samples.own.end);
      ReaderSamples part = samples;
      part.own = {begin, end};
      readers_.push_back({std::make_unique<EncoderLaneReader>(set, positions, part), end - begin});
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

// Of an encoder that takes something else than pictures.
class NoInputReader : public BatchReader<EncoderBatch> {
 public:
  EncoderBatch next() override { return {}; }
};

}  // namespace

LaneBatches::LaneBatches(LaneSetOptions options) : set_(std::make_shared<LaneSet>(std::move(options))) {}

int LaneBatches::lanes() const { return set_->options.lanes; }

void LaneBatches::restore(const std::vector<std::string>& positions) {
  check_positions(set_->options, *set_->blend, set_->sequences.settings(), positions);
  positions_ = positions;
}

std::unique_ptr<BatchReader<LanguageBatch>> LaneBatches::read_language(const ReaderSamples& samples) const {
  return std::make_unique<LanguageLaneReader>(set_, positions_, samples);
}

std::unique_ptr<BatchReader<EncoderBatch>> LaneBatches::read_encoder(const std::string& encoder,
                                                                     const ReaderSamples& samples) const {
  if (!takes_pictures(set_->options, encoder)) return std::make_unique<NoInputReader>();
  if (set_->options.loader.readers == "per_replica")
    return std::make_unique<PerReplicaReader>(set_, positions_, samples);
  return std::make_unique<EncoderLaneReader>(set_, positions_, samples);
}

}  // namespace braid
