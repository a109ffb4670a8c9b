// A survey as text, and as JSON for programs and for planners.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "data/inspect/survey.h"

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

}  // namespace braid
