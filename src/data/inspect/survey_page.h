// A survey, and samples, as one HTML page that needs no other files and no network.
#pragma once

#include <string>
#include <vector>

#include "data/inspect/reports.h"
#include "data/inspect/survey.h"
#include "data/samples/picture_plan.h"

namespace braid {

// One sample: its pictures with the patches or tiles that the encoder sees, and its tokens, those to predict in colour.
// Never throws for a damaged sample; the view then says what is wrong.
std::string sample_html(const SurveySources& sources, const std::optional<VisionInput>& vision, const SampleRef& ref);

// A picture alone. DataError if its header is damaged.
std::string picture_html(const Picture& picture);

// `samples`: as sample_html wrote them.
std::string survey_page(const SurveyReport& report, const std::vector<std::string>& samples);

}  // namespace braid
