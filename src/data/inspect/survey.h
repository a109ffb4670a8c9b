// What a data set contains, from some or all of its samples: parts, pictures, lengths, damage.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "data/samples/data_config.h"
#include "data/samples/token_sequence.h"
#include "data/shards/order.h"
#include "data/shards/sample_reader.h"
#include "pages/page.h"

namespace braid {

// Counts of whole numbers: their summary, and a histogram of them.
class Distribution {
 public:
  void add(std::int64_t value) {
    ++counts_[value];
    ++count_;
  }
  std::int64_t count() const { return count_; }
  const std::map<std::int64_t, std::int64_t>& counts() const { return counts_; }  // of each value

  // All are 0 if the distribution is empty.
  std::int64_t min() const { return quantile(0); }
  std::int64_t max() const { return quantile(1); }
  std::int64_t quantile(double share) const;  // the least value that at least this share of all does not exceed
  double mean() const;
  std::int64_t sum() const;

  // At most about `most` bars of equal width, a round number.
  std::vector<HistogramBar> bars(int most) const;

 private:
  std::map<std::int64_t, std::int64_t> counts_{};
  std::int64_t count_ = 0;
};

// The objects outlive the survey.
struct SurveySources {
  const Blend& blend;
  SampleReader& reader;
  const SequenceMaker* sequences = nullptr;  // null: without lengths
  const DataConfig& data;
  const LoaderConfig& loader;
  bool decodes = false;         // every picture, which finds damage that headers do not show
  std::size_t most_named = 20;  // damaged samples, and damaged shards
};

struct DamagedSample {
  std::string shard, key, reason;
};

// A shard with samples that cannot be read at all, or one that may have lost some.
struct DamagedShard {
  std::string shard{};
  std::int64_t samples = 0;  // of those looked at
  std::string reason{};      // of the first
};

struct Survey {
  std::int64_t samples = 0;  // looked at
  std::int64_t stored_bytes = 0, too_long = 0, cut = 0, without_targets = 0, labels = 0;
  std::map<std::string, std::int64_t> parts{}, formats{};  // how many samples have the part; pictures of the format
  std::map<std::string, std::int64_t> fields{}, unused{};  // how many samples have it, beside texts and pictures
  std::map<std::string, std::int64_t> reasons{};           // how many samples are damaged for each
  std::map<std::pair<int, int>, std::int64_t> picture_sizes{};  // width and height
  Distribution lengths{}, embeddings{}, widths{}, heights{};    // tokens per sample; embeddings per picture; pixels
  std::int64_t sequences = 0, packed_tokens = 0;                // if the samples are packed in the order of the survey
  std::int64_t damaged = 0;                                     // samples
  std::vector<DamagedShard> damaged_shards{};                   // the first ones
  std::vector<DamagedSample> first_damaged{};                   // can be read, but not used

  bool has_usable() const { return damaged + too_long + without_targets < samples; }
};

// Samples at equal distances, in the order of the data sets.
class SpreadSamples {
 public:
  // All samples if `count` is larger than their number.
  SpreadSamples(const Blend& blend, std::int64_t count);
  std::int64_t size() const { return size_; }
  // Returns nothing for a sample that split.yaml excludes.
  std::optional<SampleRef> at(std::int64_t i) const;

 private:
  const Blend& blend_;
  std::int64_t total_ = 0, size_ = 0;
};

// SystemReadError if the system fails, which says nothing about the data set.
Survey survey(const SurveySources& sources, const SpreadSamples& samples, WorkerPool& pool);

}  // namespace braid
