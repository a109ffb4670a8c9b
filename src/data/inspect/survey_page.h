// A survey as one HTML page that needs no other files and no network.
#pragma once

#include <string>
#include <vector>

#include "data/inspect/survey_report.h"

namespace braid {

// `samples`: as sample_html wrote them.
std::string survey_page(const SurveyReport& report, const std::vector<std::string>& samples);

}  // namespace braid
