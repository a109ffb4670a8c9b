#include "text/chat.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "text/template_targets.h"
#include "text/template_text.h"
#include "text/written_fields.h"

namespace braid {
namespace {

// Masking renders a template a few times per turn. This bounds the time for one conversation to seconds.
constexpr std::int64_t kMostSteps = 20'000'000;

const std::vector<std::string> kRoles = {"system", "user", "assistant", "tool"};

std::string image_with_tags(const std::string& tags) {
  if (tags.empty()) return kImageToken;
  if (tags == "nvlm") return "<Image><image></Image>";
  if (tags == "internvl") return "<img><image></img>";
  throw ConfigError({fmt::format("there are no image tags {}", in_quotes(tags)), "image tags",
                     "known: nvlm, internvl, or none (an empty name)"});
}

std::string replaced(const std::string& text, const std::string& old, const std::string& with) {
  return replace_text(text, old, with, /*most=*/-1);
}

const std::string& needed(const std::optional<std::string>& token, const char* name, const Tokenizer& tokenizer) {
  if (token) return *token;
  throw ConfigError({fmt::format("the chat format needs a {}, which the tokenizer does not name", name),
                     tokenizer.where(), fmt::format("set \"{}\" in tokenizer_config.json", name)});
}

// The message as transformers gives it to a template.
nlohmann::ordered_json message_of(const ChatTurn& turn) {
  nlohmann::ordered_json message = {{"role", turn.role}};
  if (!turn.text.empty() || !turn.fields) message["content"] = turn.text;
  if (turn.fields)
    for (const auto& [key, value] : turn.fields->items()) message[key] = value;
  return message;
}

}  // namespace

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, const std::string& format, const std::string& image_tags)
    : tokenizer_(tokenizer), format_(chat_format(format)), image_(image_with_tags(image_tags)) {
  if (!format_.own_template) return;
  const auto& source = tokenizer.settings().chat_template;
  if (!source)
    throw ConfigError({fmt::format("the chat format {} needs the tokenizer's chat template, and it has none", format),
                       tokenizer.where(), "add chat_template.jinja beside it, or choose another format"});
  template_.emplace(*source, fmt::format("chat template of {}", tokenizer.where()));
  if (const auto& for_tools = tokenizer.settings().tool_template)
    tool_template_.emplace(*for_tools, fmt::format("chat template for tools of {}", tokenizer.where()));
}

std::vector<ChatTurn> ChatEncoder::prepared(const std::vector<ChatTurn>& turns) const {
  std::vector<ChatTurn> result = turns;
  if (!format_.has_system && !result.empty() && result[0].role == "system") result.erase(result.begin());
  if (result.empty()) throw DataError("a conversation has no turns");
  for (ChatTurn& turn : result) {
    if (!contains(kRoles, turn.role))
      throw DataError(fmt::format("a turn has the role {}; known: {}", in_quotes(turn.role), fmt::join(kRoles, ", ")));
    turn.text = replaced(with_valid_utf8(turn.text), kImageToken, image_);
  }
  return result;
}

std::string ChatEncoder::render_turn(const ChatTurn& turn) const {
  if (format_.name == "identity") return turn.text;
  // A tool's answer is written as a user's turn with its own role.
  const ChatFrame& frame = turn.role == "system"      ? format_.system
                           : turn.role == "assistant" ? format_.assistant
                                                      : format_.user;
  std::string text = turn.text;
  if (format_.drops_think_switches && turn.role != "assistant")
    text = replaced(replaced(text, "/think", ""), "/no_think", "");
  if (format_.strips) text = strip_text(text, nullptr, true, true);
  const auto filled = [&](const std::string& part) {
    std::string result = replaced(replaced(part, "{role}", turn.role), "{Role}", capitalize_text(turn.role));
    const bool has_eos = result.find("{eos}") != std::string::npos;
    return has_eos ? replaced(result, "{eos}", needed(tokenizer_.settings().eos, "eos_token", tokenizer_)) : result;
  };
  return filled(frame.before) + text + filled(frame.after);
}

std::string ChatEncoder::render(const std::vector<ChatTurn>& turns, const TemplateInput& tools,
                                std::int64_t& steps) const {
  if (template_) return render_template(turns, tools, /*generation_prompt=*/false, steps);
  std::string text = format_.has_bos ? needed(tokenizer_.settings().bos, "bos_token", tokenizer_) : "";
  for (const ChatTurn& turn : turns) text += render_turn(turn);
  return text;
}

std::string ChatEncoder::render_template(const std::vector<ChatTurn>& turns, const TemplateInput& tools,
                                         bool generation_prompt, std::int64_t& steps) const {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const ChatTurn& turn : turns) messages.push_back(message_of(turn));
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

std::vector<int> ChatEncoder::tokens_of_turn(const ChatTurn& turn, const TemplateInput& tools, bool is_first,
                                             std::int64_t& steps) const {
  std::vector<int> tokens = tokenizer_.encode(render({turn}, tools, steps));
  // Only the first turn has a BOS token.
  if (format_.has_bos && !is_first && !tokens.empty()) tokens.erase(tokens.begin());
  return tokens;
}

void ChatEncoder::check_texts(const std::vector<ChatTurn>& turns) const {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    // Templates that always write a system turn write an empty one for nothing. A tool may have nothing to say, and an
    // answer may consist of tool calls or thoughts.
    const bool may_be_empty = template_ && (turns[i].role == "system" || turns[i].role == "tool" || turns[i].fields);
    if (turns[i].text.empty() && !may_be_empty)
      throw DataError(fmt::format("turn {} ({}) is empty", i + 1, turns[i].role));
    if (turns[i].role == "assistant" && turns[i].text.find(kImageToken) != std::string::npos)
      throw DataError(fmt::format("turn {} is the assistant's and contains {}", i + 1, kImageToken));
  }
}

// Frames write texts only.
void ChatEncoder::check_fields(const std::vector<ChatTurn>& turns, const TemplateInput& tools) const {
  if (template_) {
    std::int64_t steps = kMostSteps;
    return require_written_fields(turns, tools, [&](const auto& some, const TemplateInput& given) {
      return render_template(some, given, /*generation_prompt=*/false, steps);
    });
  }
  const auto refuse = [&](const std::string& what) {
    throw DataError(
        fmt::format("the chat format {} cannot write {}; nemotron6-moe writes what the tokenizer's chat "
                    "template does",
                    format_.name, what));
  };
  if (tools && !tools->empty()) refuse("its tools");
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

std::vector<std::string> ChatEncoder::unused_keys(const std::vector<ChatTurn>& turns,
                                                  const TemplateInput& tools) const {
  std::int64_t steps = kMostSteps;
  const auto render = [&](const auto& some, const TemplateInput& given) { return this->render(some, given, steps); };
  const TokenizerSettings& settings = tokenizer_.settings();
  const std::string source = template_ ? *settings.chat_template + settings.tool_template.value_or("") : "";
  return unwritten_keys(turns, tools, source, render);
}

ChatTokens ChatEncoder::mask_each_turn(const std::vector<ChatTurn>& turns, const TemplateInput& tools,
                                       std::int64_t& steps) const {
  ChatTokens result;
  result.tokens = tokenizer_.encode(render(turns, tools, steps));
  result.targets = result.tokens;
  std::size_t done = 0;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const std::vector<int> tokens = tokens_of_turn(turns[i], tools, i == 0, steps);
    const bool agrees =
        tokens.size() <= result.tokens.size() - done &&
        std::equal(tokens.begin(), tokens.end(), result.tokens.begin() + static_cast<std::ptrdiff_t>(done));
    if (!agrees)
      throw DataError(fmt::format(
          "turn {} has other tokens alone than in its conversation, so it cannot be masked; the "
          "chat format {} does not suit this tokenizer{}",
          i + 1, format_.name, format_.own_template ? "; try nemotron6-moe, which masks by its template" : ""));
    const std::size_t masked = turns[i].role == "assistant" && turns[i].is_learned
                                   ? std::min(tokens.size(), static_cast<std::size_t>(*format_.prefix_length))
                                   : tokens.size();
    std::fill_n(result.targets.begin() + static_cast<std::ptrdiff_t>(done), masked, kIgnoredTarget);
    done += tokens.size();
  }
  if (done != result.tokens.size())
    throw DataError(fmt::format("the turns have {} tokens and their conversation {}", done, result.tokens.size()));
  return result;
}

ChatTokens ChatEncoder::encode_with_targets(const std::vector<ChatTurn>& given, const TemplateInput& tools) const {
  const std::vector<ChatTurn> turns = prepared(given);
  std::int64_t steps = kMostSteps;
  check_fields(turns, tools);
  if (!format_.masks) {
    for (std::size_t i = 0; i < turns.size(); ++i)
      if (!turns[i].is_learned)
        throw DataError(
            fmt::format("turn {} has weight 0, but the chat format {} learns every token", i + 1, format_.name));
    const std::vector<int> tokens = tokenizer_.encode(render(turns, tools, steps));
    return {.tokens = tokens, .targets = tokens};
  }
  check_texts(turns);
  if (format_.prefix_length) return mask_each_turn(turns, tools, steps);
  const auto render_some = [&](const std::vector<ChatTurn>& some, bool generation_prompt) {
    return render_template(some, tools, generation_prompt, steps);
  };
  return template_targets(turns, render_some, tokenizer_);
}

}  // namespace braid
