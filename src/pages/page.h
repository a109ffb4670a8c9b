// HTML pages that are one file: they need no network, work when they are opened from a disk, and fit light and dark
// screens and paper. Some are written out as HTML (samples, answers); of others a script builds the elements from JSON
// (runs, plans). Styles and scripts are files of this folder, which are part of the program.
#pragma once

namespace braid {

extern const std::string_view kStyleCss;   // every page
extern const std::string_view kChartsCss;  // pages that a script builds, as are the two scripts below
extern const std::string_view kElementsJs;
extern const std::string_view kChartsJs;
extern const std::string_view kReportJs;    // a page of runs
extern const std::string_view kCompareJs;   // a page of two runs side by side
extern const std::string_view kTimelineJs;  // a page of a plan
extern const std::string_view kPlanJs;

// A page whose contents are `body`, which is HTML.
std::string html_page(std::string_view title, std::string_view body);

// A page whose contents scripts build from `data`, which is JSON. They run when all of the page is there, after
// elements.js and charts.js, and append to the element "page".
std::string script_page(std::string_view title, std::string_view data, std::string_view scripts);

// Any bytes as text that cannot end an element or an attribute; control characters become visible.
std::string html_text(std::string_view bytes);

std::string base64(std::string_view bytes);

// A number with its name.
std::string html_card(std::string_view value, std::string_view name);

// Cells are HTML. Without headings if there are none.
using HtmlRow = std::vector<std::string>;
std::string html_table(const HtmlRow& headings, std::span<const HtmlRow> rows);

// How many values are in a range, from `first` to `last`.
struct HistogramBar {
  std::int64_t first = 0, last = 0, count = 0;
};
// A figure with one bar per range of values. The values under the pointer are shown by the browser.
std::string html_histogram(std::string_view title, std::string_view note, std::string_view unit,
                           std::span<const HistogramBar> bars);

}  // namespace braid
