
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"
#include "data/image/decode.h"
#include "data/image/image.h"
#include "data/inspect/reports.h"
#include "pages/page.h"

namespace braid {
namespace {

constexpr std::size_t kMostPictureBytes = 256 << 10;  // larger files are shown as smaller pictures
constexpr double kShownSide = 512;
constexpr int kSmallSide = 160;            // narrower pictures are shown enlarged, with visible pixels
constexpr std::size_t kMostTokens = 4000;  // shown of a sample
constexpr std::size_t kMostPictures = 8;

std::string data_uri(const Picture& picture, const ImageHeader& header) {
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

// Lines between cells, in a box of columns x rows.
std::string grid_svg(const CellGrid& cells, const char* kind) {
  std::string path;
  for (int x = 1; x < cells.columns; ++x) path += fmt::format("M{} 0V{}", x, cells.rows);
  for (int y = 1; y < cells.rows; ++y) path += fmt::format("M0 {}H{}", y, cells.columns);
  return fmt::format(R"(<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="none"><path d="{}"/></svg>)", kind,
                     cells.columns, cells.rows, path);
}

// How the encoder divides the picture: into patches, or into tiles.
std::string division(const std::vector<MediaPlan>& inputs, const VisionInput& vision) {
  const MediaPlan& first = inputs.front();
  if (inputs.size() == 1) return grid_svg(first.patches, "patches");
  const int side = first.patches.columns * vision.patch;
  return grid_svg({first.resized.width / side, first.resized.height / side}, "tiles");
}

// The frame is as wide as a column, and not higher than 18 lines.
std::string frame_html(const Picture& picture, const ImageHeader& header, const std::string& overlay) {
  const PixelSize size = header.oriented();
  return fmt::format(
      "<div class=frame style=\"width:min(100%,18rem*{0}/{1})\"><img alt=\"\"{2} style=\"aspect-ratio:{0}/{1}\" "
      "src=\"{3}\">{4}</div>",
      size.width, size.height, size.width < kSmallSide ? " class=small" : "", data_uri(picture, header), overlay);
}

std::string picture_html(const Picture& picture, const std::vector<MediaPlan>& inputs,
                         const std::optional<VisionInput>& vision) {
  const ImageHeader header = read_header(picture.file(), picture.name);
  const PixelSize size = header.oriented();
  std::string caption = fmt::format("{} · {} · {} × {} · {}", html_text(picture.name), name_of(header.format),
                                    size.width, size.height, readable_bytes(std::ssize(picture.bytes)));
  std::string overlay;
  if (vision && !inputs.empty()) {
    const std::int64_t embeddings = embeddings_of(inputs);
    caption += inputs.size() == 1
                   ? fmt::format("<br>→ {} × {} pixels, {} × {} patches, {}", inputs[0].resized.width,
                                 inputs[0].resized.height, inputs[0].patches.columns, inputs[0].patches.rows,
                                 counted(embeddings, "embedding"))
                   : fmt::format("<br>→ {} × {} pixels, {} tiles, {}", inputs[0].resized.width,
                                 inputs[0].resized.height, inputs.size(), counted(embeddings, "embedding"));
    overlay = division(inputs, *vision);
  }
  return fmt::format("<div class=picture>{}<p>{}</p></div>\n", frame_html(picture, header, overlay), caption);
}

// The text of a token alone. Tokens that are parts of a character have none, and are shown as in the vocabulary.
std::string token_text(const Tokenizer& tokenizer, int id) {
  const std::string name = tokenizer.token(id).value_or("");
  if (const std::string mark = "\u2581"; name.find(mark) != name.npos) {  // sentencepiece's space
    std::string text = name;
    for (std::size_t at; (at = text.find(mark)) != text.npos;) text.replace(at, mark.size(), " ");
    return text;
  }
  const std::string text = tokenizer.decode({id});
  return text.empty() || text.find("\ufffd") != text.npos ? name : text;
}

std::string token_html(const Tokenizer& tokenizer, int id, bool is_predicted) {
  std::string text = html_text(token_text(tokenizer, id));
  for (std::size_t at = 0; (at = text.find('\n', at)) != text.npos; at += std::string("↵\n").size())
    text.replace(at, 1, "↵\n");
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
    out += token_html(sources.sequences->tokenizer(), tokens.ids[i], i > 0 && tokens.targets[i] != kIgnoredTarget);
    ++i;
  }
  if (end < tokens.ids.size())
    out += " … and " + counted(static_cast<std::int64_t>(tokens.ids.size() - end), "more token");
  return out + "</div>\n";
}

std::string turns_html(const Conversation& conversation) {
  std::string out = "<div class=chat>";
  for (const ChatTurn& turn : conversation.turns)
    out += fmt::format("<b>{}</b> {}\n", html_text(turn.role.empty() ? "text" : turn.role), html_text(turn.text));
  return out + "</div>\n";
}

const char* note_of(std::optional<Unfit> unfit) {
  if (unfit == Unfit::TooLong) return " · <b class=bad>skipped: too long</b>";
  return unfit == Unfit::WithoutTargets ? " · <b class=bad>skipped: nothing to predict</b>" : "";
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
    facts += note_of(sources.sequences->fit(tokens));
  } else {
    text = turns_html(conversation);
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
    out += html_card(fmt::format("{:.1f} %", 100 * packing_density(report)),
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

std::string data_set_table(const SurveyReport& report) {
  std::vector<HtmlRow> rows;
  for (const DataSetCount& set : report.data_sets)
    rows.push_back(
        {html_text(set.path), html_text(set.split), std::to_string(set.shards), std::to_string(set.samples)});
  return "<h2>Data sets</h2>" + html_table({"path", "split", "shards", "samples"}, rows);
}

std::string count_table(const Survey& survey) {
  std::vector<HtmlRow> rows;
  const auto add = [&](const std::map<std::string, std::int64_t>& counts, const char* before, const char* after,
                       const char* unit) {
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

}  // namespace

std::string picture_html(const Picture& picture) {
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
  body += data_set_table(report) + count_table(survey) + damaged_table(survey);
  body +=
      "<h2>Samples</h2>\n<p><span class=t>Coloured</span> tokens are predicted; the others are context. Point at a "
      "token for its id. Lines on a picture show the patches or tiles that the encoder sees.</p>\n";
  for (const std::string& sample : samples) body += sample;
  return html_page(report.path, body);
}

}  // namespace braid
