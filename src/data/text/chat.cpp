#include "data/text/chat.h"
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include "base/strings.h"
#include "base/utf8.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<std::string> kRoles = {"system", "user", "assistant", "tool"};

// All turns are written alike.
ChatFormat uniform(std::string name, const ChatFrame& turn, bool has_bos, bool strips = false) {
  return {
      .name = std::move(name), .system = turn, .user = turn, .assistant = turn, .has_bos = has_bos, .strips = strips};
}

// Names and texts are those of Megatron-LM's tokenizers for multimodal models and for fine-tuning.
const std::vector<ChatFormat>& formats() {
  static const ChatFrame chatml = {"<|im_start|>{role}\n", "<|im_end|>\n"};
  static const ChatFrame llama31 = {"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"};
  static const std::vector<ChatFormat> all = {
      {.name = "nemotron6-moe", .own_template = true},
      uniform("nemotron5", {"<SPECIAL_14>{role}\n", "<SPECIAL_15>\n"}, /*has_bos=*/true),
      uniform("nemotron5-aligned", {"{Role}\n", "\n[PREFIX]"}, /*has_bos=*/true),
      {.name = "nemotron-h-aligned",  // the user's turn announces the assistant's, which begins with its text
       .system = {"<SPECIAL_10>System\n", "\n"},
       .user = {"<SPECIAL_11>User\n", "\n<SPECIAL_11>Assistant\n"},
       .assistant = {"", "\n"},
       .strips = true,
       .announces_answers = true},
      {.name = "nemotron-nano-v2",
       .system = {"<SPECIAL_10>System\n", "\n"},
       .user = {"<SPECIAL_11>User\n", "\n"},
       .assistant = {"<SPECIAL_11>Assistant\n", "\n<SPECIAL_12>\n"},
       .strips = true,
       .drops_think_switches = true},
      {.name = "chatml", .own_template = true, .markers = {"<|im_start|>", "<|im_end|>"}},
      uniform("qwen2p0", chatml, /*has_bos=*/false),
      uniform("qwen2p5", chatml, /*has_bos=*/false),
      uniform("nvlm-yi-34b", chatml, /*has_bos=*/true),
      {.name = "llama3", .own_template = true, .markers = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      uniform("llama3p1", llama31, /*has_bos=*/true, /*strips=*/true),
      uniform("llama3p2", llama31, /*has_bos=*/true, /*strips=*/true),
      {.name = "mistral",
       .user = {"[INST] ", "[/INST]"},
       .assistant = {" ", "{eos}"},
       .has_bos = true,
       .has_system = false,
       .announces_answers = true},
      {.name = "identity", .masks = false},
      {.name = "default", .own_template = true, .masks = false},
  };
  return all;
}

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
Json parts_of(const std::string& text, const std::string& image_token) {
  Json parts = Json::array();
  const auto texts = image_token.empty() ? std::vector<std::string_view>{text} : split_text(text, &image_token, -1);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) parts.push_back({{"type", "image"}});
    if (!texts[i].empty() || texts.size() == 1) parts.push_back({{"type", "text"}, {"text", std::string(texts[i])}});
  }
  return parts;
}

// The message as transformers gives it to a template. `content` is its text or its parts.
Json message_of(const ChatTurn& turn, Json content) {
  Json message = {{"role", turn.role}};
  if (!turn.text.empty() || !turn.fields) message["content"] = std::move(content);
  if (turn.fields)
    for (const auto& [key, value] : turn.fields->items()) message[key] = value;
  return message;
}

// A template leaves out what it does not know without a word, and the model would never see it. So marks are put into
// the values of a conversation, and looked for in what the template writes.
constexpr std::array kThoughts = {"reasoning_content", "reasoning", "thinking"};
constexpr std::array kCalls = {"tool_calls", "function_call", "tools"};

struct Mark {
  std::string text, what;
};

// A mark has private characters, which no filter changes.
std::string next_mark(std::vector<Mark>& marks, const std::string& what) {
  return marks.emplace_back(Mark{fmt::format("\uE000{}\uE001", marks.size()), what}).text;
}

// Marks a text, the name of a tool, or the name and the arguments of a call; in a list, each item.
void mark(Json& value, const std::string& what, std::vector<Mark>& marks) {
  if (value.is_string()) {
    value = value.get<std::string>() + next_mark(marks, what);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) mark(value[i], fmt::format("{}[{}]", what, i), marks);
  } else if (value.is_object()) {
    if (const auto inner = value.find("function"); inner != value.end() && inner->is_object())
      return mark(*inner, what, marks);
    if (const auto name = value.find("name"); name != value.end() && name->is_string())
      mark(*name, what + ".name", marks);
    const auto given = value.find("arguments");
    if (given != value.end() && given->is_object()) {
      const std::string added = next_mark(marks, what + ".arguments");
      (*given)[added] = added;
    } else if (given != value.end()) {
      mark(*given, what + ".arguments", marks);
    }
  }
}

// The same thought may have several names; it is enough if the template writes one of them.
std::vector<Mark> mark_turn(ChatTurn& turn) {
  std::vector<Mark> marks;
  Json fields = *turn.fields;
  std::map<std::string, std::string> marked;  // thoughts without and with their marks
  for (const char* key : kThoughts) {
    const auto found = fields.find(key);
    if (found == fields.end() || !found->is_string() || is_empty_value(*found)) continue;
    const auto [same, is_new] = marked.try_emplace(found->get<std::string>());
    if (is_new) same->second = same->first + next_mark(marks, key);
    *found = same->second;
  }
  for (const char* key : kCalls)
    if (const auto found = fields.find(key); found != fields.end()) mark(*found, key, marks);
  turn.fields = std::make_shared<const Json>(std::move(fields));
  return marks;
}

// The first one that a text lacks; null: none, or there is no text.
const Mark* missing_in(const std::optional<std::string>& text, const std::vector<Mark>& marks) {
  const auto lost =
      std::ranges::find_if(marks, [&](const Mark& each) { return text && text->find(each.text) == text->npos; });
  return lost == marks.end() ? nullptr : &*lost;
}

std::vector<ChatTurn> without(std::vector<ChatTurn> turns, const std::string& key) {
  for (ChatTurn& turn : turns) {
    if (!turn.fields || !turn.fields->contains(key)) continue;
    Json fields = *turn.fields;
    fields.erase(key);
    turn.fields = std::make_shared<const Json>(std::move(fields));
  }
  return turns;
}

}  // namespace

std::vector<std::string> chat_format_names() { return vector_of<std::string>(formats(), &ChatFormat::name); }

const ChatFormat& chat_format(const std::string& name) {
  if (const auto found = std::ranges::find(formats(), name, &ChatFormat::name); found != formats().end()) return *found;
  const std::vector<std::string> names = chat_format_names();
  const auto similar = nearest(name, names);
  throw ConfigError(
      {fmt::format("there is no chat format {}", in_quotes(name)), "chat format",
       fmt::format("{}known: {}", similar ? fmt::format("did you mean {}? ", *similar) : "", fmt::join(names, ", "))});
}

std::vector<std::string> markers_of(const ChatFormat& format) {
  std::vector<std::string> markers = format.markers;
  for (const ChatFrame& frame : {format.system, format.user, format.assistant})
    for (const std::string& text : {frame.before, frame.after})
      for (std::size_t begin = text.find('<'); begin != text.npos; begin = text.find('<', begin + 1)) {
        const std::size_t end = text.find('>', begin);
        if (end == text.npos) break;
        if (std::string marker = text.substr(begin, end + 1 - begin); !contains(markers, marker))
          markers.push_back(std::move(marker));
      }
  return markers;
}

bool says_something(const std::string& key) {
  const auto is_it = [&](const char* other) { return key == other; };
  return std::ranges::any_of(kThoughts, is_it) || std::ranges::any_of(kCalls, is_it);
}

bool is_empty_value(const Json& value) { return value.empty() || value == "" || value == false; }

// Renders a conversation, its beginnings and variants of it, with one kind of content.
class ChatEncoder::Rendering {
 public:
  Rendering(const ChatEncoder& encoder, Content content) : encoder_(encoder), content_(content) {}
  Rendering(const ChatEncoder& encoder, const std::vector<ChatTurn>& turns)
      : Rendering(encoder, encoder.without_images_) {
    for (const ChatTurn& turn : turns)
      if (turn.text.find(encoder.image_token_) != std::string::npos) content_ = encoder.with_images_;
  }

  TemplateText render(const std::vector<ChatTurn>& turns, const TemplateInput& tools, bool generation_prompt) {
    Json messages = Json::array();
    for (const ChatTurn& turn : turns) {
      const bool has_parts = content_ == Content::PartsOfUsers        ? turn.role == "user"
                             : content_ == Content::PartsExceptSystem ? turn.role != "system"
                                                                      : content_ != Content::Text;
      const std::string image = content_ == Content::TextParts ? "" : encoder_.image_token_;
      messages.push_back(message_of(turn, has_parts ? parts_of(turn.text, image) : Json(turn.text)));
    }
    Json variables = {{"messages", std::move(messages)},
                      {"tools", tools ? *tools : Json()},
                      {"documents", nullptr},
                      {"add_generation_prompt", generation_prompt}};
    const TokenizerSettings& settings = encoder_.tokenizer_.settings();
    using Token = std::pair<const char*, std::optional<std::string>>;
    for (const auto& [name, token] : {Token("bos_token", settings.bos), Token("eos_token", settings.eos),
                                      Token("pad_token", settings.pad), Token("unk_token", settings.unk)})
      if (token) variables[name] = *token;
    const bool for_tools = tools && encoder_.tool_template_;
    return (for_tools ? *encoder_.tool_template_ : *encoder_.template_).render(variables, steps_);
  }

  // Nothing if the template refuses the conversation, for example a name that has a mark.
  std::optional<std::string> attempt(const std::vector<ChatTurn>& turns, const TemplateInput& tools) try {
    return render(turns, tools, /*generation_prompt=*/false).text;
  } catch (const DataError&) {
    return std::nullopt;
  }

  // DataError if a tool, a tool call or a thought does not get into the text. A template may leave out a thought or a
  // call when others follow it, so each turn is the last one.
  void require_fields(const std::vector<ChatTurn>& turns, const TemplateInput& tools) {
    if (tools) {
      Json marked = *tools;
      std::vector<Mark> marks;
      mark(marked, "tools", marks);
      if (const Mark* lost = missing_in(attempt(turns, std::make_shared<const Json>(marked)), marks))
        throw DataError(fmt::format("the chat template does not write the sample's {}", lost->what));
    }
    for (std::size_t i = 0; i < turns.size(); ++i) {
      if (!turns[i].fields) continue;
      std::vector<ChatTurn> marked(turns.begin(), turns.begin() + i + 1);
      const std::vector<Mark> marks = mark_turn(marked.back());
      if (const Mark* lost = marks.empty() ? nullptr : missing_in(attempt(marked, tools), marks))
        throw DataError(
            fmt::format("the chat template does not write the {} of turn {} ({})", lost->what, i + 1, turns[i].role));
    }
  }

  // Renderings of beginnings may fail, but not because the steps are used up.
  void require_steps() const {
    if (steps_ <= 0) throw DataError("the conversation is too long: the chat template needs too many steps; split it");
  }

 private:
  const ChatEncoder& encoder_;
  Content content_;
  std::int64_t steps_ = 20'000'000;  // in all, which bounds the time for one conversation to seconds
};

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, const std::string& format, const std::string& image_tags,
                         const std::string& image_token, const std::tm& now)
    : tokenizer_(tokenizer), format_(chat_format(format)), image_token_(image_token),
      image_(image_with_tags(image_token, image_tags)) {
  if (!format_.own_template) return;
  const auto& source = tokenizer.settings().chat_template;
  if (!source)
    throw ConfigError({fmt::format("the chat format {} needs the tokenizer's chat template, and it has none", format),
                       tokenizer.where(), "add chat_template.jinja beside it, or choose another format"});
  template_.emplace(*source, fmt::format("chat template of {}", tokenizer.where()), now);
  if (const auto& for_tools = tokenizer.settings().tool_template)
    tool_template_.emplace(*for_tools, fmt::format("chat template for tools of {}", tokenizer.where()), now);
  using enum Content;
  without_images_ = choose_content("one", {Text, Parts, PartsExceptSystem, PartsOfUsers});
  // A template with a branch for parts writes the text around an image that the model was made for. Tags of the recipe
  // replace that text.
  const std::vector<Content> parts_first = {Parts, PartsExceptSystem, PartsOfUsers, Text, TextParts};
  const std::vector<Content> text_first = {Text, Parts, PartsExceptSystem, PartsOfUsers, TextParts};
  with_images_ = choose_content(image_ + "one", image_tags.empty() ? parts_first : text_first);
}

// Whether the template writes each text, and the image once, if it gets the content like this. A template that expects
// a text may write a list of parts as Python does.
bool ChatEncoder::writes_all(const std::vector<ChatTurn>& turns, Content content) const try {
  const auto count = [&](const std::string& text) { return split_text(text, &image_token_, -1).size(); };
  const TemplateText written = Rendering(*this, content).render(turns, {}, /*generation_prompt=*/false);
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

void ChatEncoder::check_texts(const std::vector<ChatTurn>& turns) const {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const auto& [role, text, is_learned, fields] = turns[i];
    // Templates that always write a system turn write an empty one for nothing. A tool may have nothing to say, and an
    // answer may consist of tool calls or thoughts.
    if (text.empty() && !(template_ && (role == "system" || role == "tool" || fields)))
      throw DataError(fmt::format("turn {} ({}) is empty", i + 1, role));
    if (role != "assistant") continue;
    if (text.find(image_token_) != std::string::npos)
      throw DataError(fmt::format("turn {} is the assistant's and contains {}", i + 1, image_token_));
    if (format_.announces_answers && (i == 0 || turns[i - 1].role == "system"))
      throw DataError(
          fmt::format("the conversation begins with the assistant (turn {}), which the chat format {} cannot write: "
                      "the user's turn announces the answer",
                      i + 1, format_.name));
  }
}

// Frames write texts only.
void ChatEncoder::check_fields(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const {
  if (template_) {
    Rendering rendering(*this, turns);
    rendering.require_fields(turns, tools);
    return rendering.require_steps();
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
  Rendering rendering(*this, turns);
  std::optional<std::string> whole;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (!is_system(turns[i])) continue;
    std::vector<ChatTurn> changed = turns;
    changed[i].text = "\uE000";  // a private character, which no filter changes
    if (!whole) whole = rendering.attempt(turns, tools);
    const std::optional<std::string> other = rendering.attempt(changed, tools);
    if (!whole || !other) return true;  // the template refuses the conversation, which is reported elsewhere
    if (whole == other) return false;
  }
  return true;
}

std::vector<std::string> ChatEncoder::unused_keys(const std::vector<ChatTurn>& turns,
                                                  const TemplateInput& tools) const {
  std::set<std::string> keys;
  for (const ChatTurn& turn : turns)
    if (turn.fields)
      for (const auto& [key, value] : turn.fields->items())
        if (key != "content" && !says_something(key)) keys.insert(key);
  Rendering rendering(*this, turns);
  const TokenizerSettings& settings = tokenizer_.settings();
  const std::string source = template_ ? *settings.chat_template + settings.tool_template.value_or("") : "";
  std::vector<std::string> unused;
  std::optional<std::string> whole;
  for (const std::string& key : keys) {
    const auto is_in_source = [&](const std::string& word) { return source.find(word) != source.npos; };
    const bool is_read = is_in_source("." + key) || is_in_source("'" + key + "'") || is_in_source('"' + key + '"');
    if (is_read && !whole) whole = rendering.attempt(turns, tools);
    if (is_read && !whole) break;  // the template refuses the sample, which is reported elsewhere
    if (!is_read || whole == rendering.attempt(without(turns, key), tools)) unused.push_back(key);
  }
  return unused;
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
    std::string said = turn.text;
    if (format_.drops_think_switches && turn.role != "assistant")
      said = replace_text(replace_text(said, "/think", ""), "/no_think", "");
    text += format_.strips ? strip_text(said, nullptr, true, true) : said;
    before = span.said = text.size();
    span.end = (text += filled(frame.after, turn.role)).size();
    if (turn.role == "assistant" && turn.is_learned) spans.push_back(span);
  }
  if (!spans.empty() && spans.back().after == 0) spans.back().after = text.size();
  return targets_of(text, spans, tokenizer_);
}

ChatTokens ChatEncoder::encode_template(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const try {
  Rendering rendering(*this, turns);
  const auto render = [&](const std::vector<ChatTurn>& some, bool generation_prompt) {
    return rendering.render(some, tools, generation_prompt);
  };
  ChatTokens tokens = template_targets(turns, render, tokenizer_, image_token_);
  rendering.require_steps();
  return tokens;
} catch (const DataError& e) {
  const auto first = std::ranges::find_if(turns, [](const ChatTurn& turn) { return turn.role != "system"; });
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
  if (template_) {
    TemplateText written = Rendering(*this, turns).render(turns, tools, /*generation_prompt=*/false);
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
