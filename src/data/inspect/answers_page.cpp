#include <fmt/format.h>

#include "base/error.h"
#include "data/inspect/answers.h"
#include "data/inspect/html.h"
#include "data/inspect/sample_view.h"

namespace braid {
namespace {

std::string pictures_html(LaneSet& set, const ModelAnswer& answer) {
  if (answer.pictures == 0) return "";
  const Sample sample = set.reader.read(answer.ref);
  std::string html;
  for (const Picture& picture :
       read_conversation(sample, set.blend->leaves[answer.ref.leaf].spec, set.options.data.fields).pictures)
    html += picture_html(picture);
  return "<div class=pictures>" + html + "</div>";
}

std::string answer_html(LaneSet& set, const ModelAnswer& answer) {
  std::string pictures;
  try {
    pictures = pictures_html(set, answer);
  } catch (const DataError& e) {
    pictures = fmt::format("<p class=bad>{}</p>", html_text(e.what()));
  }
  return fmt::format(
      "<article>{}<dl><dt>question<dd>{}<dt>answer<dd>{}<dt>model, teacher-forced<dd><b class={}>{}</b></dl>"
      "<p><small>{} · {}</small></p></article>\n",
      pictures, html_text(answer.question), html_text(answer.right), answer.is_right ? "t" : "bad",
      html_text(answer.chosen), html_text(answer.key), html_text(answer.shard));
}

std::string share_card(const AnswerCounts& counts, std::string_view name) {
  if (counts.all == 0) return "";
  return html_card(fmt::format("{:.1f} %", 100 * counts.share()),
                   fmt::format("{} ({} of {})", name, counts.right, counts.all));
}

}  // namespace

std::string answers_page(LaneSet& set, const std::string& title, const std::vector<ModelAnswer>& shown,
                         const std::vector<ModelAnswer>& all) {
  std::string body =
      "<div class=cards>" +
      share_card(count_answers(all, AnswersOf::SamplesWithPictures), "right answers, with pictures") +
      share_card(count_answers(all, AnswersOf::SamplesWithoutPictures), "right answers, without pictures") +
      fmt::format("</div>\n<h2>Answers</h2>\n<p>{}</p>\n<div class=answers>\n", kTeacherForced);
  for (const ModelAnswer& answer : shown) body += answer_html(set, answer);
  return html_page(title, body + "</div>\n");
}

}  // namespace braid
