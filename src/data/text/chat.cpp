#include "data/text/chat.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/template_targets.h"

namespace braid {
namespace {

// Masking renders a template a few times per turn. This bounds the time for one conversation to seconds.
constexpr std::int64_t kMostSteps = 20'000'000;
constexpr const char* kTooManySteps = "the conversation is too long: the chat template needs too many steps; split it";

const std::vector<std::string> kRoles = {"system", "user", "assistant", "tool"};

std::string image_with_tags(const std::string& image, const std::string& tags) {
  if (tags.empty()) return image;
  if (tags == "nvlm") return "<Image>" + image + "</Image>";
  if (tags == "internvl") return "<img>" + image + "</img>";
  throw ConfigError({fmt::format("there are no image tags {}", in_quotes(tags)), "image tags",
                     "known: nvlm, internvl, or none (an empty name)"});
}

const std::string& needed(const std::optional<std::string>& token, const char* name, const Tokenizer& tokenizer) {
  if (token) return *token;
  throw ConfigError({fmt::format("the chat format needs a {}, which the tokenizer does not name", name),
                     tokenizer.where(), fmt::format("set \"{}\" in tokenizer_config.json", name)});
}

// [{"type": "image"}, {"type": "text", "text": ...}]
nlohmann::ordered_json parts_of(const std::string& text, const std::string& image_token) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  const auto texts = image_token.empty() ? std::vector<std::string_view>{text} : split_text(text, &image_token, -1);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) parts.push_back({{"type", "image"}});
    if (!texts[i].empty() || texts.size() == 1) parts.push_back({{"type", "text"}, {"text", std::string(texts[i])}});
  }
  return parts;
}

// The message as transformers gives it to a template. `content` is its text or its parts.
nlohmann::ordered_json message_of(const ChatTurn& turn, nlohmann::ordered_json content) {
  nlohmann::ordered_json message = {{"role", turn.role}};
  if (!turn.text.empty() || !turn.fields) message["content"] = std::move(content);
  if (turn.fields)
    for (const auto& [key, value] : turn.fields->items()) message[key] = value;
  return message;
}

}  // namespace

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, const std::string& format, const std::string& image_tags,
                         const std::string& image_token, const std::tm& now)
    : tokenizer_(tokenizer),
      format_(chat_format(format)),
      image_token_(image_token),
      image_(image_with_tags(image_token, image_tags)) {
  if (!format_.own_template) return;
  const auto& source = tokenizer.settings().chat_template;
  if (!source)
    throw ConfigError({fmt::format("the chat format {} needs the tokenizer's chat template, and it has none", format),
                       tokenizer.where(), "add chat_template.jinja beside it, or choose another format"});
  template_.emplace(*source, fmt::format("chat template of {}", tokenizer.where()), now);
  if (const auto& for_tools = tokenizer.settings().tool_template)
    tool_template_.emplace(*for_tools, fmt::format("chat template for tools of {}", tokenizer.where()), now);
  without_images_ =
      choose_content("one", {Content::Text, Content::Parts, Content::PartsExceptSystem, Content::PartsOfUsers});
  // A template with a branch for parts writes the text around an image that the model was made for. Tags of the recipe
  // replace that text.
  with_images_ = image_tags.empty()
                     ? choose_content(image_ + "one", {Content::Parts, Content::PartsExceptSystem,
                                                       Content::PartsOfUsers, Content::Text, Content::TextParts})
                     : choose_content(image_ + "one", {Content::Text, Content::Parts, Content::PartsExceptSystem,
                                                       Content::PartsOfUsers, Content::TextParts});
}

// Whether the template writes each text, and the image once, if it gets the content like this. A template that expects
// a text may write a list of parts as Python does.
bool ChatEncoder::writes_all(const std::vector<ChatTurn>& turns, Content content) const try {
  const auto count = [&](const std::string& text) { return split_text(text, &image_token_, -1).size(); };
  std::int64_t steps = kMostSteps;
  const TemplateText written = render_template(turns, {}, /*generation_prompt=*/false, content, steps);
  return !missing_turn(turns, written, image_token_) && written.text.find("'type': 'text'") == std::string::npos &&
         count(written.text) == count(turns[turns.size() - 2].text);
} catch (const DataError&) {
  return false;
}

// Some templates need a system turn, some refuse one; those that take both must write both.
ChatEncoder::Content ChatEncoder::choose_content(const std::string& question,
                                                 const std::vector<Content>& choices) const {
  const std::vector<ChatTurn> asked = {{"user", question}, {"assistant", "two"}};
  std::vector<ChatTurn> with_system = asked;
  with_system.insert(with_system.begin(), {"system", "three"});
  for (const Content content : choices)
    if (writes_all(asked, content) && writes_all(with_system, content)) return content;
  for (const Content content : choices)
    if (writes_all(asked, content) || writes_all(with_system, content)) return content;
  return Content::Text;
}

ChatEncoder::Content ChatEncoder::content_of(const std::vector<ChatTurn>& turns) const {
  const bool has_images = std::any_of(turns.begin(), turns.end(), [&](const ChatTurn& turn) {
    return turn.text.find(image_token_) != std::string::npos;
  });
  return has_images ? with_images_ : without_images_;
}

std::vector<ChatTurn> ChatEncoder::prepared(const std::vector<ChatTurn>& turns) const {
  std::vector<ChatTurn> result = turns;
  if (!format_.has_system && !result.empty() && result[0].role == "system") result.erase(result.begin());
  if (result.empty()) throw DataError("a conversation has no turns");
  for (ChatTurn& turn : result) {
    const bool is_known = contains(kRoles, turn.role) || (template_ && turn.role == "developer");
    if (!is_known)
      throw DataError(fmt::format("a turn has the role {}; known: {}", in_quotes(turn.role), fmt::join(kRoles, ", ")));
    turn.text = replace_text(with_valid_utf8(turn.text), kImageToken, image_);
  }
  return result;
}

std::string ChatEncoder::filled(const std::string& frame, const std::string& role) const {
  std::string result = replace_text(replace_text(frame, "{role}", role), "{Role}", capitalize_text(role));
  const bool has_eos = result.find("{eos}") != std::string::npos;
  return has_eos ? replace_text(result, "{eos}", needed(tokenizer_.settings().eos, "eos_token", tokenizer_)) : result;
}

std::string ChatEncoder::frame_text(const ChatTurn& turn) const {
  std::string text = turn.text;
  if (format_.drops_think_switches && turn.role != "assistant")
    text = replace_text(replace_text(text, "/think", ""), "/no_think", "");
  return format_.strips ? std::string(strip_text(text, nullptr, true, true)) : text;
}

TemplateText ChatEncoder::render_template(const std::vector<ChatTurn>& turns, const TemplateInput& tools,
                                          bool generation_prompt, Content content, std::int64_t& steps) const {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const ChatTurn& turn : turns) {
    const bool has_parts = content == Content::PartsOfUsers        ? turn.role == "user"
                           : content == Content::PartsExceptSystem ? turn.role != "system"
                                                                   : content != Content::Text;
    const std::string image = content == Content::TextParts ? "" : image_token_;
    messages.push_back(message_of(turn, has_parts ? parts_of(turn.text, image) : nlohmann::ordered_json(turn.text)));
  }
  nlohmann::ordered_json variables = {{"messages", std::move(messages)},
                                      {"tools", tools ? *tools : nlohmann::ordered_json()},
                                      {"documents", nullptr},
                                      {"add_generation_prompt", generation_prompt}};
  const auto add = [&](const char* name, const std::optional<std::string>& token) {
    if (token) variables[name] = *token;
  };
  const TokenizerSettings& settings = tokenizer_.settings();
  add("bos_token", settings.bos);
  add("eos_token", settings.eos);
  add("pad_token", settings.pad);
  add("unk_token", settings.unk);
  return (tools && tool_template_ ? *tool_template_ : *template_).render(variables, steps);
}

void ChatEncoder::check_texts(const std::vector<ChatTurn>& turns) const {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    // Templates that always write a system turn write an empty one for nothing. A tool may have nothing to say, and an
    // answer may consist of tool calls or thoughts.
    const bool may_be_empty = template_ && (turns[i].role == "system" || turns[i].role == "tool" || turns[i].fields);
    if (turns[i].text.empty() && !may_be_empty)
      throw DataError(fmt::format("turn {} ({}) is empty", i + 1, turns[i].role));
    if (turns[i].role == "assistant" && turns[i].text.find(image_token_) != std::string::npos)
      throw DataError(fmt::format("turn {} is the assistant's and contains {}", i + 1, image_token_));
    const bool is_announced = i > 0 && turns[i - 1].role != "system";
    if (turns[i].role == "assistant" && format_.announces_answers && !is_announced)
      throw DataError(
          fmt::format("the conversation begins with the assistant (turn {}), which the chat format {} cannot write: "
                      "the user's turn announces the answer",
                      i + 1, format_.name));
  }
}

// Frames write texts only.
void ChatEncoder::check_fields(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const {
  if (template_) {
    std::int64_t steps = kMostSteps;
    require_written_fields(turns, tools,
                           [&, content = content_of(turns)](const auto& some, const TemplateInput& given) {
                             return render_template(some, given, /*generation_prompt=*/false, content, steps).text;
                           });
    if (steps <= 0) throw DataError(kTooManySteps);
    return;
  }
  const auto refuse = [&](const std::string& what) {
    throw DataError(
        fmt::format("the chat format {} cannot write {}; set data.prompt_format=nemotron6-moe, which uses the "
                    "tokenizer's chat template",
                    format_.name, what));
  };
  if (tools && !tools->empty()) refuse("the sample's tools");
  const std::string& before = format_.user.before;
  const bool writes_roles = before.find("{role}") != before.npos || before.find("{Role}") != before.npos;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].role == "tool" && format_.masks && !writes_roles)
      refuse(fmt::format("the answer of a tool (turn {})", i + 1));
    if (!turns[i].fields) continue;
    for (const auto& [key, value] : turns[i].fields->items())
      if (says_something(key) && !is_empty_value(value)) refuse(fmt::format("the {} of turn {}", key, i + 1));
  }
}

bool ChatEncoder::writes_system(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const {
  const auto is_system = [](const ChatTurn& turn) { return turn.role == "system" && !turn.text.empty(); };
  if (!template_) return format_.has_system || turns.empty() || !is_system(turns.front());
  std::int64_t steps = kMostSteps;
  const auto render = [&](const std::vector<ChatTurn>& some) {
    return render_template(some, tools, /*generation_prompt=*/false, content_of(turns), steps).text;
  };
  try {
    std::optional<std::string> whole;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      if (!is_system(turns[i])) continue;
      std::vector<ChatTurn> changed = turns;
      changed[i].text = "\uE000";  // a private character, which no filter changes
      if (!whole) whole = render(turns);
      if (whole == render(changed)) return false;
    }
  } catch (const DataError&) {  // the template refuses the conversation, which is reported elsewhere
  }
  return true;
}

std::vector<std::string> ChatEncoder::unused_keys(const std::vector<ChatTurn>& turns,
                                                  const TemplateInput& tools) const {
  std::int64_t steps = kMostSteps;
  const auto render = [&](const auto& some, const TemplateInput& given) {
    return template_ ? render_template(some, given, /*generation_prompt=*/false, content_of(turns), steps).text : "";
  };
  const TokenizerSettings& settings = tokenizer_.settings();
  const std::string source = template_ ? *settings.chat_template + settings.tool_template.value_or("") : "";
  return unwritten_keys(turns, tools, source, render);
}

ChatTokens ChatEncoder::encode_frames(const std::vector<ChatTurn>& turns) const {
  std::string text = format_.has_bos ? needed(tokenizer_.settings().bos, "bos_token", tokenizer_) : "";
  std::vector<AnswerSpan> spans;
  std::size_t before = 0;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const ChatTurn& turn = turns[i];
    // A tool's answer is written as a user's turn with its own role.
    const ChatFrame& frame = turn.role == "system"      ? format_.system
                             : turn.role == "assistant" ? format_.assistant
                                                        : format_.user;
    text += filled(frame.before, turn.role);
    if (!spans.empty() && spans.back().after == 0) spans.back().after = text.size();
    AnswerSpan span = {.turn = i, .before = before, .begin = text.size()};
    before = span.said = (text += frame_text(turn)).size();
    span.end = (text += filled(frame.after, turn.role)).size();
    if (turn.role == "assistant" && turn.is_learned) spans.push_back(span);
  }
  if (!spans.empty() && spans.back().after == 0) spans.back().after = text.size();
  return targets_of(text, spans, tokenizer_);
}

ChatTokens ChatEncoder::encode_template(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const try {
  std::int64_t steps = kMostSteps;
  const auto render = [&, content = content_of(turns)](const std::vector<ChatTurn>& some, bool generation_prompt) {
    return render_template(some, tools, generation_prompt, content, steps);
  };
  ChatTokens tokens = template_targets(turns, render, tokenizer_, image_token_);
  // Renderings of beginnings may fail, but not because the steps are used up.
  if (steps <= 0) throw DataError(kTooManySteps);
  return tokens;
} catch (const DataError& e) {
  const auto first =
      std::find_if(turns.begin(), turns.end(), [](const ChatTurn& turn) { return turn.role != "system"; });
  if (first == turns.end() || first->role != "assistant") throw;
  throw DataError(
      fmt::format("{}; the conversation begins with the assistant, which some templates cannot write", e.what()));
}

ChatTokens ChatEncoder::encode_unmasked(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const {
  for (std::size_t i = 0; i < turns.size(); ++i)
    if (!turns[i].is_learned)
      throw DataError(
          fmt::format("turn {} has weight 0, but the chat format {} learns every token", i + 1, format_.name));
  std::string text;
  std::int64_t steps = kMostSteps;
  if (template_) {
    TemplateText written = render_template(turns, tools, /*generation_prompt=*/false, content_of(turns), steps);
    require_texts(turns, written, image_token_);
    text = std::move(written.text);
  } else {
    for (const ChatTurn& turn : turns) text += turn.text;
  }
  const std::vector<int> tokens = tokenizer_.encode(text);
  return {.tokens = tokens, .targets = tokens};
}

ChatTokens ChatEncoder::encode_with_targets(const std::vector<ChatTurn>& given, const TemplateInput& tools) const {
  const std::vector<ChatTurn> turns = prepared(given);
  check_fields(turns, tools);
  if (!format_.masks) return encode_unmasked(turns, tools);
  check_texts(turns);
  return template_ ? encode_template(turns, tools) : encode_frames(turns);
}

}  // namespace braid
