#include "data/inspect/survey_page.h"

#include <fmt/format.h>

#include "base/strings.h"
#include "data/inspect/html.h"

namespace braid {
namespace {

std::string cards(const SurveyReport& report) {
  const Survey& survey = report.survey;
  std::int64_t samples = 0, shards = 0;
  for (const DataSetCount& set : report.data_sets) samples += set.samples, shards += set.shards;
  std::string out = "<div class=cards>" + html_card(std::to_string(samples), "samples in the listed splits") +
                    html_card(std::to_string(shards), "shards") +
                    html_card(std::to_string(survey.samples), "samples looked at") +
                    html_card(readable_bytes(survey.stored_bytes), "stored bytes of these") +
                    html_card(std::to_string(survey.widths.count()), "pictures in them") +
                    html_card(std::to_string(survey.damaged), "damaged");
  if (report.sequence_length > 0)
    out += html_card(fmt::format("{:.1f} %", 100 * packing_density(report)),
                     fmt::format("packing density at {} tokens", report.sequence_length)) +
           html_card(std::to_string(survey.too_long), "too long, skipped") +
           html_card(std::to_string(survey.without_targets), "nothing to predict, skipped");
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
  for (const auto& [name, count] : survey.fields)
    rows += fmt::format("<tr><td>field {}<td>{}</tr>", html_text(name), counted(count, "sample"));
  for (const auto& [name, count] : survey.unused)
    rows += fmt::format("<tr><td>{}, not used<td>{}</tr>", html_text(name), counted(count, "sample"));
  return "<h2>Contents</h2><div class=scroll><table>" + rows + "</table></div>\n";
}

std::string damaged_table(const Survey& survey) {
  if (survey.damaged == 0 && survey.damaged_shards.empty()) return "";
  std::string rows;
  for (const DamagedShard& shard : survey.damaged_shards)
    rows += fmt::format("<tr><td>{}<td>(shard)<td class=bad>{}</tr>", html_text(shard.shard),
                        html_text(shard_damage(shard)));
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
  std::string body = cards(report) + "<h2>Sizes</h2><div class=charts>\n" +
                     html_histogram("Tokens per sample", "tokens", survey.lengths) +
                     html_histogram("Embeddings per picture", "embeddings", survey.embeddings) +
                     html_histogram("Width of pictures", "pixels", survey.widths) +
                     html_histogram("Height of pictures", "pixels", survey.heights) + "</div>\n";
  body += data_set_table(report) + count_table(survey) + damaged_table(survey);
  body +=
      "<h2>Samples</h2>\n<p><span class=t>Coloured</span> tokens are predicted; the others are context. Point at a "
      "token for its id. Lines on a picture show the patches or tiles that the encoder sees.</p>\n";
  for (const std::string& sample : samples) body += sample;
  return html_page(report.path, body);
}

}  // namespace braid
