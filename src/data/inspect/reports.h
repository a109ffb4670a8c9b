// What `braid data` reports, as text and pages for people and JSON for programs: surveys, and packed sequences.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "data/inspect/survey.h"
#include "data/samples/packing.h"
#include "data/samples/picture_plan.h"

namespace braid {

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
};

std::string shard_damage(const DamagedShard& shard);  // "3 samples unreadable: ..."
double packing_density(const SurveyReport& report);   // from 0 to 1
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
std::string show_cut(std::int64_t samples);

// Parts of HTML pages that need no other files and no network (survey_page.cpp).

// One sample: its pictures with the patches or tiles that the encoder sees, and its tokens, those to predict in colour.
// Never throws for a damaged sample; the view then says what is wrong.
std::string sample_html(const SurveySources& sources, const std::optional<VisionInput>& vision, const SampleRef& ref);

// A picture alone. DataError if its header is damaged.
std::string picture_html(const Picture& picture);

// `samples`: as sample_html wrote them.
std::string survey_page(const SurveyReport& report, const std::vector<std::string>& samples);

}  // namespace braid
