#include "data/inspect/answers.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/inspect/reports.h"
#include "data/text/chat.h"
#include "pages/page.h"

namespace braid {
namespace {

std::string without_picture_tags(std::string text) {
  for (std::size_t at; (at = text.find(kPictureTag)) != text.npos;) text.erase(at, kPictureTag.size());
  return std::string(strip_text(text, nullptr, true, true));
}

// The turn before each one that is predicted.
std::vector<std::string> questions_of(const Conversation& conversation) {
  std::vector<std::string> questions;
  for (std::size_t i = 0; i < conversation.turns.size(); ++i) {
    const std::string& role = conversation.turns[i].role;
    if (role == "assistant" || role.empty())
      questions.push_back(i > 0 ? without_picture_tags(conversation.turns[i - 1].text) : "");
  }
  return questions;
}

// A model may choose an id that its tokenizer does not have: vocabularies are padded.
std::string text_of(const Tokenizer& tokenizer, const std::vector<int>& ids) {
  std::string text;
  std::vector<int> known;
  const auto decode_known = [&] { text += tokenizer.decode(std::exchange(known, {}), /*skip_special=*/true); };
  for (const int id : ids) {
    if (tokenizer.token(id)) {
      known.push_back(id);
      continue;
    }
    decode_known();
    text += fmt::format("<no token {}>", id);
  }
  decode_known();
  return std::string(strip_text(text, nullptr, true, true));
}

// The answers of one sample: runs of consecutive tokens that are predicted. `choices` begins at the sample's first
// token.
void add_answers(const LaneSet& set, const ReadSample& sample, std::span<const int> choices,
                 std::vector<ModelAnswer>& answers) {
  const std::vector<int>& targets = sample.tokens.targets;
  const SampleSpec& spec = set.blend->leaves[sample.ref.leaf].spec;
  const std::vector<std::string> questions =
      questions_of(read_conversation(set.reader.read(sample.ref), spec, set.options.data.fields));
  const Tokenizer& tokenizer = set.sequences.tokenizer();
  std::size_t turn = 0;
  for (std::size_t i = 1; i < targets.size();) {
    std::vector<int> right, chosen;
    for (; i < targets.size() && targets[i] != kIgnoredTarget; ++i) {
      right.push_back(targets[i]);
      chosen.push_back(choices[i - 1]);
    }
    if (right.empty()) {
      ++i;
      continue;
    }
    answers.push_back({.ref = sample.ref,
                       .shard = sample.shard->name,
                       .key = sample.key,
                       .question = turn < questions.size() ? questions[turn] : "",
                       .right = text_of(tokenizer, right),
                       .chosen = text_of(tokenizer, chosen),
                       .is_right = right == chosen,
                       .pictures = sample.pictures.size()});
    ++turn;
  }
}

// Shortens a text to a cell of a table, without line breaks.
std::string cell(const std::string& text) {
  constexpr int kWidth = 40;
  std::string line = visible_text(with_valid_utf8(text));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  std::string_view rest = line;
  for (int i = 0; i < kWidth && !rest.empty(); ++i) take_character(rest);
  return rest.empty() ? line : line.substr(0, line.size() - rest.size()) + "...";
}

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

constexpr std::pair<AnswersOf, const char*> kKinds[] = {{AnswersOf::SamplesWithPictures, "with pictures"},
                                                        {AnswersOf::SamplesWithoutPictures, "without pictures"}};

}  // namespace

std::vector<ModelAnswer> model_answers(const std::shared_ptr<const LaneSet>& set, const SequenceOrder& order,
                                       const std::vector<std::vector<int>>& choices,
                                       const std::set<SampleId>& damaged) {
  ReplicaLanes lanes(set, {.first = 0, .count = order.replicas, .all = order.replicas}, {});
  std::vector<ModelAnswer> answers;
  std::set<SampleRef> seen;  // in any epoch
  for (std::size_t s = 0; s < choices.size(); ++s) {
    const int replica = static_cast<int>(s) / order.micro_batch % order.replicas;
    std::size_t begin = 0;
    for (const ReadSample& sample : lanes.next(replica)) {
      const std::span<const int> own = std::span(choices[s]).subspan(begin, sample.tokens.ids.size());
      begin += own.size();
      SampleRef place = sample.ref;
      place.epoch = 0;
      if (!damaged.contains(id_of_sample(*sample.shard, sample.ref.index)) && seen.insert(place).second)
        add_answers(*set, sample, own, answers);
    }
  }
  // In the order of the data set, whatever the order of the evaluation was.
  std::ranges::stable_sort(answers, {}, &ModelAnswer::ref);
  return answers;
}

AnswerCounts count_answers(const std::vector<ModelAnswer>& answers, AnswersOf which) {
  AnswerCounts counts;
  for (const ModelAnswer& answer : answers) {
    if ((answer.pictures > 0) != (which == AnswersOf::SamplesWithPictures)) continue;
    ++counts.all;
    counts.right += answer.is_right;
  }
  return counts;
}

std::vector<ModelAnswer> spread(const std::vector<ModelAnswer>& answers, std::size_t count) {
  std::vector<ModelAnswer> some;
  const std::size_t wanted = std::min(count, answers.size());
  for (std::size_t i = 0; i < wanted; ++i) some.push_back(answers[i * answers.size() / wanted]);
  return some;
}

std::string answers_text(const std::vector<ModelAnswer>& shown, const std::vector<ModelAnswer>& all) {
  std::vector<std::vector<std::string>> rows;
  for (const ModelAnswer& answer : shown)
    rows.push_back({cell(answer.key), cell(answer.question), cell(answer.right), cell(answer.chosen),
                    answer.is_right ? "right" : "wrong"});
  std::string text =
      rows.empty() ? "" : format_table({"sample", "question", "answer", "model's answer *", ""}, rows) + "\n";
  for (const auto& [which, name] : kKinds)
    if (const AnswerCounts counts = count_answers(all, which); counts.all > 0)
      text += fmt::format("right answers of samples {}: {:.1f} % ({} of {})\n", name, 100 * counts.share(),
                          counts.right, counts.all);
  return text + fmt::format("* {}\n", kTeacherForced);
}

nlohmann::ordered_json answer_json(const ModelAnswer& answer) {
  return {{"shard", with_valid_utf8(answer.shard)},
          {"key", with_valid_utf8(answer.key)},
          {"pictures", answer.pictures},
          {"question", with_valid_utf8(answer.question)},
          {"answer", with_valid_utf8(answer.right)},
          {"model_answer", with_valid_utf8(answer.chosen)},
          {"teacher_forced", true},
          {"right", answer.is_right}};
}

std::string answers_page(LaneSet& set, const std::string& title, const std::vector<ModelAnswer>& shown,
                         const std::vector<ModelAnswer>& all) {
  std::string body = "<div class=cards>";
  for (const auto& [which, name] : kKinds)
    if (const AnswerCounts counts = count_answers(all, which); counts.all > 0)
      body += html_card(fmt::format("{:.1f} %", 100 * counts.share()),
                        fmt::format("right answers, {} ({} of {})", name, counts.right, counts.all));
  body += fmt::format("</div>\n<h2>Answers</h2>\n<p>{}</p>\n<div class=answers>\n", kTeacherForced);
  for (const ModelAnswer& answer : shown) body += answer_html(set, answer);
  return html_page(title, body + "</div>\n");
}

}  // namespace braid
