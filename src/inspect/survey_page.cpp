#include "inspect/survey_page.h"

#include <fmt/format.h>

#include "base/strings.h"
#include "inspect/html.h"

namespace braid {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2430; --soft: #5d6b7d; --line: #dde2e9;
  --bar: #3b7dd8; --hit: #bfe8c8; --hit-ink: #0c4a1e; --media: #dcd3f7; --media-ink: #3d2a85; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1b212a; --ink: #e4e9f0; --soft: #97a3b4;
  --line: #303a47; --bar: #6aa5f4; --hit: #1e4d2c; --hit-ink: #c9f5d5; --media: #3b3070; --media-ink: #e2daff;
  --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .8rem; }
h3 { font-size: 1rem; margin: 0 0 .7rem; overflow-wrap: anywhere; }
small, .axis, figcaption span, p { color: var(--soft); font-weight: normal; }
.cards, .charts { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); }
.charts { grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); }
.card, figure, article, .scroll { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .8rem 1rem; margin: 0; }
.card b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: .85rem; }
figcaption { display: flex; justify-content: space-between; gap: 1rem; font-size: .85rem; margin-bottom: .5rem; }
figure svg { width: 100%; height: 6rem; fill: var(--bar); display: block; border-bottom: 1px solid var(--line); }
figure rect:hover { fill: var(--ink); }
.axis { display: flex; justify-content: space-between; font-size: .78rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 600; }
tr:last-child td { border-bottom: 0; }
article { margin-bottom: .9rem; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; margin-bottom: .8rem; }
.picture { flex: 0 1 20rem; }
.picture p { margin: .35rem 0 0; font-size: .8rem; }
.frame { position: relative; line-height: 0; border-radius: .35rem; overflow: hidden; }
.frame img { width: 100%; }
.small { image-rendering: pixelated; }
.frame svg { position: absolute; inset: 0; width: 100%; height: 100%; fill: none;
  mix-blend-mode: difference; }
.frame path { vector-effect: non-scaling-stroke; stroke: #fff; stroke-opacity: .55; }
.tiles path { stroke-width: 3px; stroke-opacity: .9; }
.chat { white-space: pre-wrap; overflow-wrap: anywhere; font: 13.5px/1.7 ui-monospace, monospace; max-height: 24rem;
  overflow-y: auto; }
.chat span:hover { outline: 1px solid var(--bar); }
.t { background: var(--hit); color: var(--hit-ink); border-radius: .2rem; }
.e { background: var(--media); color: var(--media-ink); border-radius: .3rem; padding: .05rem .4rem; }
.bad { color: var(--bad); }
)";

std::string card(const std::string& value, std::string_view name) {
  return fmt::format("<div class=card><b>{}</b><span>{}</span></div>", html_text(value), html_text(name));
}

std::string cards(const SurveyReport& report) {
  const Survey& survey = report.survey;
  std::int64_t samples = 0, shards = 0;
  for (const DataSetCount& set : report.data_sets) samples += set.samples, shards += set.shards;
  std::string out = "<div class=cards>" + card(std::to_string(samples), "samples in all splits") +
                    card(std::to_string(shards), "shards") + card(std::to_string(survey.samples), "samples looked at") +
                    card(readable_bytes(survey.stored_bytes), "stored bytes of these") +
                    card(std::to_string(survey.widths.count()), "pictures in them") +
                    card(std::to_string(survey.damaged), "damaged");
  if (report.sequence_length > 0)
    out += card(fmt::format("{:.1f} %", 100 * packing_density(report)),
                fmt::format("packing density at {} tokens", report.sequence_length)) +
           card(std::to_string(survey.too_long), "too long, skipped") +
           card(std::to_string(survey.without_targets), "nothing to predict, skipped");
  return out + "</div>\n";
}

std::string data_set_table(const SurveyReport& report) {
  std::string rows;
  for (const DataSetCount& set : report.data_sets)
    rows += fmt::format("<tr><td>{}<td>{}<td>{}<td>{}</tr>", html_text(set.path), html_text(set.split), set.shards,
                        set.samples);
  return "<h2>Data sets</h2><div class=scroll><table><tr><th>path<th>split<th>shards<th>samples</tr>" + rows +
         "</table></div>\n";
}

std::string count_table(const Survey& survey) {
  std::string rows;
  for (const auto& [name, count] : survey.parts)
    rows += fmt::format("<tr><td>part {}<td>{}</tr>", html_text(name), counted(count, "sample"));
  for (const auto& [name, count] : survey.formats)
    rows += fmt::format("<tr><td>{}<td>{}</tr>", html_text(name), counted(count, "picture"));
  return "<h2>Contents</h2><div class=scroll><table>" + rows + "</table></div>\n";
}

std::string damaged_table(const Survey& survey) {
  if (survey.damaged == 0) return "";
  std::string rows;
  for (const DamagedSample& sample : survey.first_damaged)
    rows += fmt::format("<tr><td>{}<td>{}<td class=bad>{}</tr>", html_text(sample.shard), html_text(sample.key),
                        html_text(sample.reason));
  return fmt::format(
      "<h2>Damaged samples ({})</h2><div class=scroll><table><tr><th>shard<th>key<th>reason</tr>{}</table></div>\n",
      survey.damaged, rows);
}

}  // namespace

std::string survey_page(const SurveyReport& report, const std::vector<std::string>& samples) {
  const Survey& survey = report.survey;
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width\">"
      "<title>{0}</title><style>{1}</style></head><body>\n<h1>{0}</h1>\n",
      html_text(report.path), kStyle);
  page += cards(report) + "<h2>Sizes</h2><div class=charts>\n" +
          html_histogram("Tokens per sample", "tokens", survey.lengths) +
          html_histogram("Embeddings per picture", "embeddings", survey.embeddings) +
          html_histogram("Width of pictures", "pixels", survey.widths) +
          html_histogram("Height of pictures", "pixels", survey.heights) + "</div>\n";
  page += data_set_table(report) + count_table(survey) + damaged_table(survey);
  page +=
      "<h2>Samples</h2>\n<p><span class=t>Coloured</span> tokens are predicted; the others are context. Point at a "
      "token for its id. Lines on a picture show the patches or tiles that the encoder sees.</p>\n";
  for (const std::string& sample : samples) page += sample;
  return page + "</body></html>\n";
}

}  // namespace braid
