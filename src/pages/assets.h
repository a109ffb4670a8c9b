// The files of this folder that pages contain, see cmake/EmbedFiles.cmake.
#pragma once

#include <string_view>

namespace braid {

extern const std::string_view kStyleCss;    // every page
extern const std::string_view kSamplesCss;  // pages of samples
extern const std::string_view kChartsCss;   // pages of runs and plans, as are the scripts below
extern const std::string_view kElementsJs;
extern const std::string_view kChartsJs;
extern const std::string_view kReportJs;
extern const std::string_view kTimelineJs;
extern const std::string_view kPlanJs;

}  // namespace braid
