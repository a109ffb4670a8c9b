// The answers that a model chose in an evaluation, beside the right ones.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/samples/lane_set.h"

namespace braid {

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
