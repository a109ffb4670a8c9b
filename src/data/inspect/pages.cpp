#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/image/decode.h"
#include "data/image/image.h"
#include "data/inspect/reports.h"
#include "data/text/chat.h"
#include "pages/page.h"

namespace braid {
namespace {

constexpr std::size_t kMostPictureBytes = 256 << 10;  // larger files are shown as smaller pictures
constexpr double kShownSide = 512;
constexpr int kSmallSide = 160;            // narrower pictures are shown enlarged, with visible pixels
constexpr std::size_t kMostTokens = 4000;  // shown of a sample
constexpr std::size_t kMostPictures = 8;

std::string data_uri(const SamplePart& picture, const ImageHeader& header) {
  if (picture.bytes.size() <= kMostPictureBytes) {
    constexpr const char* kTypes[] = {"jpeg", "png", "webp"};
    return fmt::format("data:image/{};base64,{}", kTypes[static_cast<int>(header.format)], base64(picture.bytes));
  }
  Image image = decode(picture.file(), picture.name);
  const double scale = kShownSide / std::max(image.size().width, image.size().height);
  const auto scaled = [&](int side) { return std::max(1, static_cast<int>(std::lround(side * scale))); };
  if (scale < 1)
    image = resize(image, {scaled(image.size().width), scaled(image.size().height)}, ResizeFilter::Bilinear);
  return "data:image/png;base64," + base64(encode_png(image));
}

// How the encoder divides the picture: lines between cells, in a box of columns x rows.
std::string grid_svg(const CellGrid& cells, const char* kind) {
  std::string path;
  for (int x = 1; x < cells.columns; ++x) path += fmt::format("M{} 0V{}", x, cells.rows);
  for (int y = 1; y < cells.rows; ++y) path += fmt::format("M0 {}H{}", y, cells.columns);
  return fmt::format(R"(<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="none"><path d="{}"/></svg>)", kind,
                     cells.columns, cells.rows, path);
}

// The frame is as wide as a column, and not higher than 18 lines.
std::string frame_html(const SamplePart& picture, const ImageHeader& header, const std::string& overlay) {
  const PixelSize size = header.oriented();
  return fmt::format(
      "<div class=frame style=\"width:min(100%,18rem*{0}/{1})\"><img alt=\"\"{2} style=\"aspect-ratio:{0}/{1}\" "
      "src=\"{3}\">{4}</div>",
      size.width, size.height, size.width < kSmallSide ? " class=small" : "", data_uri(picture, header), overlay);
}

std::string picture_html(const SamplePart& picture, const std::vector<MediaPlan>& inputs,
                         const std::optional<VisionInput>& vision) {
  const ImageHeader header = read_header(picture.file(), picture.name);
  const PixelSize size = header.oriented();
  std::string caption = fmt::format("{} · {} · {} × {} · {}", html_text(picture.name), name_of(header.format),
                                    size.width, size.height, readable_bytes(std::ssize(picture.bytes)));
  std::string overlay;
  if (vision && !inputs.empty()) {
    const std::int64_t embeddings = embeddings_of(inputs);
    const auto& [width, height] = inputs[0].resized;
    const CellGrid& patches = inputs[0].patches;
    const bool is_whole = inputs.size() == 1;
    const std::string cells = is_whole ? fmt::format("{} × {} patches", patches.columns, patches.rows)
                                       : fmt::format("{} tiles", inputs.size());
    caption += fmt::format("<br>→ {} × {} pixels, {}, {}", width, height, cells, counted(embeddings, "embedding"));
    const int side = patches.columns * vision->patch;
    overlay = is_whole ? grid_svg(patches, "patches") : grid_svg({width / side, height / side}, "tiles");
  }
  return fmt::format("<div class=picture>{}<p>{}</p></div>\n", frame_html(picture, header, overlay), caption);
}

// The text of a token alone. Tokens that are parts of a character have none, and are shown as in the vocabulary.
std::string token_text(const Tokenizer& tokenizer, int id) {
  const std::string name = tokenizer.token(id).value_or("");
  if (const char* space = "\u2581"; name.find(space) != name.npos) return replace_text(name, space, " ");
  const std::string text = tokenizer.decode({id});
  return text.empty() || text.find("\ufffd") != text.npos ? name : text;
}

std::string token_html(const Tokenizer& tokenizer, int id, bool is_predicted) {
  const std::string text = replace_text(html_text(token_text(tokenizer, id)), "\n", "↵\n");
  return fmt::format("<span{} title=\"{}{}\">{}</span>", is_predicted ? " class=t" : "", id,
                     is_predicted ? ", predicted" : "", text);
}

std::string tokens_html(const SurveySources& sources, const TokenSequence& tokens,
                        const std::optional<VisionInput>& vision) {
  std::string out = "<div class=chat>";
  std::size_t media = 0;
  const std::size_t end = std::min(tokens.ids.size(), kMostTokens);
  for (std::size_t i = 0; i < end;) {
    if (vision && tokens.ids[i] == vision->token_id && media < tokens.media.size()) {
      const MediaPlan& input = tokens.media[media++];
      out += fmt::format("<span class=e title=\"{}, {} times\">picture {}: {}</span>", tokens.ids[i], input.embeddings,
                         input.picture + 1, counted(input.embeddings, "embedding"));
      i += static_cast<std::size_t>(std::max<std::int64_t>(input.embeddings, 1));
      continue;
    }
    out += token_html(sources.sequences->tokenizer(), tokens.ids[i], i > 0 && tokens.targets[i] != kIgnoredLabel);
    ++i;
  }
  if (end < tokens.ids.size())
    out += " … and " + counted(static_cast<std::int64_t>(tokens.ids.size() - end), "more token");
  return out + "</div>\n";
}

// The pictures with their encoder's inputs, and the text. DataError for a damaged sample.
std::string content_html(const SurveySources& sources, const std::optional<VisionInput>& vision, const Sample& sample,
                         const SampleRef& ref, std::string& facts) {
  const Conversation conversation = read_conversation(sample, sources.blend.leaves[ref.leaf].spec, sources.data.fields);
  std::vector<std::vector<MediaPlan>> inputs(conversation.pictures.size());
  std::string text;
  if (sources.sequences) {
    TokenSequence tokens = sources.sequences->encode(conversation);
    facts += fmt::format(" · {} · {} predicted", counted(std::ssize(tokens.ids), "token"), tokens.labels());
    for (const MediaPlan& input : tokens.media) inputs[input.picture].push_back(input);
    text = tokens_html(sources, tokens, vision);
    if (const auto unfit = sources.sequences->fit(tokens); !is_usable(unfit))
      facts +=
          fmt::format(" · <b class=bad>skipped: {}</b>", unfit == Unfit::TooLong ? "too long" : "nothing to predict");
  } else {
    for (const ChatTurn& turn : conversation.turns)
      text += fmt::format("<b>{}</b> {}\n", html_text(turn.role.empty() ? "text" : turn.role), html_text(turn.text));
    text = "<div class=chat>" + text + "</div>\n";
  }
  std::string pictures;
  for (std::size_t i = 0; i < std::min(conversation.pictures.size(), kMostPictures); ++i)
    pictures += picture_html(conversation.pictures[i], inputs[i], vision);
  return (pictures.empty() ? "" : "<div class=pictures>" + pictures + "</div>") + text;
}

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
    out += html_card(fmt::format("{:.1f} %", 100 * report.packing_density()),
                     fmt::format("packing density at {} tokens", report.sequence_length)) +
           html_card(std::to_string(survey.too_long), "too long, skipped") +
           html_card(std::to_string(survey.without_targets), "nothing to predict, skipped");
  return out + "</div>\n";
}

std::string histogram(std::string_view title, std::string_view unit, const Distribution& values) {
  constexpr int kBars = 32;
  const std::string note =
      fmt::format("median {} · mean {:.1f} · p90 {}", values.quantile(0.5), values.mean(), values.quantile(0.9));
  return html_histogram(title, note, unit, values.bars(kBars));
}

std::string count_table(const Survey& survey) {
  std::vector<HtmlRow> rows;
  const auto add = [&](const Survey::Counts& counts, const char* before, const char* after, const char* unit) {
    for (const auto& [name, count] : counts) rows.push_back({before + html_text(name) + after, counted(count, unit)});
  };
  add(survey.parts, "part ", "", "sample");
  add(survey.formats, "", "", "picture");
  add(survey.fields, "field ", "", "sample");
  add(survey.unused, "", ", not used", "sample");
  return "<h2>Contents</h2>" + html_table({}, rows);
}

std::string damaged_table(const Survey& survey) {
  if (survey.damaged == 0 && survey.damaged_shards.empty()) return "";
  std::vector<HtmlRow> rows;
  const auto add = [&](const std::string& shard, const std::string& key, const std::string& reason) {
    rows.push_back({html_text(shard), html_text(key), fmt::format("<span class=bad>{}</span>", html_text(reason))});
  };
  for (const DamagedShard& shard : survey.damaged_shards) add(shard.shard, "(shard)", shard_damage(shard));
  for (const DamagedSample& sample : survey.first_damaged) add(sample.shard, sample.key, sample.reason);
  return fmt::format("<h2>Damaged samples ({})</h2>", survey.damaged) + html_table({"shard", "key", "reason"}, rows);
}

Conversation conversation_of(const LaneSet& set, const Sample& sample, const SampleRef& ref) {
  return read_conversation(sample, set.blend->leaves[ref.leaf].spec, set.options.data.fields);
}

// The turn before each one that is predicted, without marks of pictures.
std::vector<std::string> questions_of(const Conversation& conversation) {
  std::vector<std::string> questions;
  std::string before;
  for (const ChatTurn& turn : conversation.turns) {
    if (turn.role == "assistant" || turn.role.empty()) questions.emplace_back(strip_text(before, nullptr, true, true));
    before = replace_text(turn.text, kPictureTag, "");
  }
  return questions;
}

// A model may choose an id that its tokenizer does not have: vocabularies are padded.
std::string text_of(const Tokenizer& tokenizer, const std::vector<int>& ids) {
  std::string text;
  for (auto id = ids.begin(); id != ids.end();) {
    const auto known_end = std::find_if(id, ids.end(), [&](int other) { return !tokenizer.token(other); });
    text += tokenizer.decode({id, known_end}, /*skip_special=*/true);
    for (id = known_end; id != ids.end() && !tokenizer.token(*id); ++id) text += fmt::format("<no token {}>", *id);
  }
  return std::string(strip_text(text, nullptr, true, true));
}

// The answers of one sample: runs of consecutive tokens that are predicted. `choices` begins at the sample's first
// token.
void add_answers(const LaneSet& set, const ReadSample& sample, std::span<const int> choices,
                 std::vector<ModelAnswer>& answers) {
  const std::vector<int>& targets = sample.tokens.targets;
  const std::vector<std::string> questions =
      questions_of(conversation_of(set, set.reader.read(sample.ref), sample.ref));
  const Tokenizer& tokenizer = set.sequences.tokenizer();
  std::size_t turn = 0;
  for (std::size_t i = 1; i < targets.size();) {
    std::vector<int> right, chosen;
    for (; i < targets.size() && targets[i] != kIgnoredLabel; ++i) {
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
  std::ranges::replace_if(
      line, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  std::string_view rest = line;
  for (int i = 0; i < kWidth && !rest.empty(); ++i) take_character(rest);
  return rest.empty() ? line : line.substr(0, line.size() - rest.size()) + "...";
}

std::string answer_html(const LaneSet& set, const ModelAnswer& answer) {
  std::string pictures;
  if (answer.pictures > 0) try {
      const Sample sample = set.reader.read(answer.ref);
      for (const SamplePart& picture : conversation_of(set, sample, answer.ref).pictures)
        pictures += picture_html(picture);
      pictures = "<div class=pictures>" + pictures + "</div>";
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

std::string picture_html(const SamplePart& picture) {
  return frame_html(picture, read_header(picture.file(), picture.name), "");
}

std::string sample_html(const SurveySources& sources, const std::optional<VisionInput>& vision, const SampleRef& ref) {
  std::string title = fmt::format("number {}", ref.index), facts = html_text(sources.reader.shard_of(ref).name),
              content;
  try {
    const Sample sample = sources.reader.read(ref);
    title = sample.key;
    content = content_html(sources, vision, sample, ref, facts);
  } catch (const SystemReadError&) {
    throw;
  } catch (const DataError& e) {
    content = fmt::format("<p class=bad>{}</p>", html_text(e.what()));
  }
  return fmt::format("<article><h3>{} <small>{}</small></h3>{}</article>\n", html_text(title), facts, content);
}

std::string survey_page(const SurveyReport& report, const std::vector<std::string>& samples) {
  const Survey& survey = report.survey;
  std::string body = cards(report) + "<h2>Sizes</h2><div class=charts>\n" +
                     histogram("Tokens per sample", "tokens", survey.lengths) +
                     histogram("Embeddings per picture", "embeddings", survey.embeddings) +
                     histogram("Width of pictures", "pixels", survey.widths) +
                     histogram("Height of pictures", "pixels", survey.heights) + "</div>\n";
  std::vector<HtmlRow> sets;
  for (const auto& [path, split, shards, count] : report.data_sets)
    sets.push_back({html_text(path), html_text(split), std::to_string(shards), std::to_string(count)});
  body += "<h2>Data sets</h2>" + html_table({"path", "split", "shards", "samples"}, sets) + count_table(survey) +
          damaged_table(survey);
  body +=
      "<h2>Samples</h2>\n<p><span class=t>Coloured</span> tokens are predicted; the others are context. Point at a "
      "token for its id. Lines on a picture show the patches or tiles that the encoder sees.</p>\n";
  for (const std::string& sample : samples) body += sample;
  return html_page(report.path, body);
}

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
  Rows rows;
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
