// What `braid data` reports, as text and pages for people and JSON for programs: surveys of what a data set contains
// (parts, pictures, lengths, damage), from some or all of its samples; packed sequences; how fast a data set can be
// read; and the answers that a model chose in an evaluation, beside the right ones.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include "base/worker_pool.h"
#include "data/samples/lane_set.h"
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
  using Counts = std::map<std::string, std::int64_t>;

  std::int64_t samples = 0;  // looked at
  std::int64_t stored_bytes = 0, too_long = 0, cut = 0, without_targets = 0, labels = 0;
  Counts parts{}, formats{};                                    // samples that have the part; pictures of the format
  Counts fields{}, unused{};                                    // samples that have it, beside texts and pictures
  Counts reasons{};                                             // damaged samples
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

// One data set of a blend in one split.
struct DataSetCount {
  std::string path, split;
  std::int64_t shards = 0, samples = 0;
};
std::vector<DataSetCount> count_data_sets(const Blend& blend);

struct SurveyReport {
  std::string path{};  // as the user wrote it
  std::vector<DataSetCount> data_sets{};
  Survey survey{};
  std::int64_t sequence_length = 0;  // 0: without a tokenizer

  double packing_density() const;  // from 0 to 1
};

std::string shard_damage(const DamagedShard& shard);  // "3 samples unreadable: ..."
std::string show_survey(const SurveyReport& report);
nlohmann::ordered_json survey_json(const SurveyReport& report);
// Exact counts of lengths, embeddings and sizes of pictures.
nlohmann::ordered_json stats_json(const SurveyReport& report);

struct PackSize {
  std::int64_t repeated = 0;  // samples of earlier sequences; a lane of training reads them again in each epoch
  std::int64_t samples = 0, tokens = 0, labels = 0, pictures = 0, embeddings = 0;
};
PackSize size_of(const Pack& pack);

// The samples of a pack with their lengths, borders, labels and media.
nlohmann::ordered_json pack_json(const Pack& pack, std::int64_t sequence_length);
// A row for each pack, and how full all of them are.
std::string show_packs(const std::vector<PackSize>& packs, std::int64_t sequence_length);

// {"skipped": {"too_long": 3, "without_targets": 0, "damaged": 1}, "cut": 0}
nlohmann::ordered_json skipped_json(const BadSamples& bad);
// "skipped: 3 too long, 0 with nothing to predict, 1 damaged"; below it, if there are any, "cut: 2 samples"
std::string show_skipped(const BadSamples& bad);

// Parts of HTML pages that need no other files and no network (pages.cpp).

// One sample: its pictures with the patches or tiles that the encoder sees, and its tokens, those to predict in colour.
// Never throws for a damaged sample; the view then says what is wrong.
std::string sample_html(const SurveySources& sources, const std::optional<VisionInput>& vision, const SampleRef& ref);
// A picture alone. DataError if its header is damaged.
std::string picture_html(const SamplePart& picture);
// `samples`: as sample_html wrote them.
std::string survey_page(const SurveyReport& report, const std::vector<std::string>& samples);

struct LoadTotals {
  std::int64_t samples = 0, sequences = 0, tokens = 0, pictures = 0, patches = 0, stored_bytes = 0;
  double seconds = 0;
};

struct LoadLimits {
  double seconds = 10;
  bool one_pass = false;  // ends when each sample was read once, however long that takes
};

// Reads, tokenizes, packs, decodes, resizes and cuts with the threads of `pool`. DataError if there is nothing to read.
LoadTotals measure_loading(const LaneSet& set, const LoadLimits& limits, WorkerPool& pool);

struct LoadPhase {
  std::string name;
  double seconds = 0;
  bool of_pictures = false;  // else of text
};
struct LoadPhases {
  std::vector<LoadPhase> phases{};
  std::int64_t tokens = 0, patches = 0;  // of the samples that were read
};
// The phases of that work, one after the other on this thread, for up to `seconds`.
LoadPhases measure_phases(const LaneSet& set, double seconds);

inline constexpr const char* kTeacherForced =
    "The model's answers are teacher-forced: each token is the model's first choice given the correct tokens before "
    "it. The model did not generate these answers; generated ones may be worse.";

struct ModelAnswer {
  SampleRef ref{};
  std::string shard{}, key{};
  std::string question{};  // the turn before the answer, without marks of pictures
  std::string right{}, chosen{};
  bool is_right = false;  // every token
  std::size_t pictures = 0;
};

// Which sequences of a step a language replica has.
struct SequenceOrder {
  int replicas = 1;
  int micro_batch = 1;
};

// `choices`: by sequence, in the order of the evaluation: for each token, the model's choice for the next one, given
// the right tokens up to there. A sample that was evaluated again counts once, and `damaged` ones have no answers:
// their pictures were not shown. The result is in the order of the data set.
std::vector<ModelAnswer> model_answers(const std::shared_ptr<const LaneSet>& set, const SequenceOrder& order,
                                       const std::vector<std::vector<int>>& choices, const std::set<SampleId>& damaged);

struct AnswerCounts {
  std::int64_t right = 0, all = 0;
  double share() const { return all == 0 ? 0 : static_cast<double>(right) / static_cast<double>(all); }
};
enum class AnswersOf { SamplesWithPictures, SamplesWithoutPictures };
AnswerCounts count_answers(const std::vector<ModelAnswer>& answers, AnswersOf which);

// Some answers at equal distances.
std::vector<ModelAnswer> spread(const std::vector<ModelAnswer>& answers, std::size_t count);

// A table, and how many are right.
std::string answers_text(const std::vector<ModelAnswer>& shown, const std::vector<ModelAnswer>& all);
nlohmann::ordered_json answer_json(const ModelAnswer& answer);
// One self-contained HTML page.
std::string answers_page(LaneSet& set, const std::string& title, const std::vector<ModelAnswer>& shown,
                         const std::vector<ModelAnswer>& all);

}  // namespace braid
