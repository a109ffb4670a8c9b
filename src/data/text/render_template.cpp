#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/chat.h"
#include "data/text/template_interpreter.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

bool is_python_space(std::uint32_t code) { return is_white_space(code) || (code >= 0x1c && code <= 0x1f); }
bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::size_t length_at(std::string_view text) { return std::max<std::size_t>(utf8_length(text), 1); }

// The length of the white space character that the text begins with; 0 if it begins with another.
std::size_t space_at(std::string_view text) {
  std::string_view rest = text;
  const auto code = take_character(rest);
  return code && is_python_space(*code) ? text.size() - rest.size() : 0;
}

std::vector<std::string_view> split_at_white_space(std::string_view text, std::int64_t most) {
  std::vector<std::string_view> words;
  while (true) {
    for (std::size_t space; !text.empty() && (space = space_at(text)) > 0;) text.remove_prefix(space);
    if (text.empty()) return words;
    std::size_t end = most == 0 ? text.size() : 0;  // the last part keeps its white space
    while (end < text.size() && space_at(text.substr(end)) == 0) end += length_at(text.substr(end));
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    --most;
  }
}

void refuse_other_alphabets(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) throw DataError("upper case of text beyond ASCII is not supported");
}

constexpr std::int64_t kMostSteps = 2'000'000;  // of one rendering

// Texts in it are of this source; without one, of none.
TemplateValue from_json(const nlohmann::ordered_json& json, TemplateState& state, std::optional<int> source = {}) {
  if (json.is_string()) {
    TemplateText text = {json.get<std::string>(), {}};
    if (source && !text.text.empty()) text.origins = {{0, text.text.size(), *source}};
    return text;
  }
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_array()) {
    TemplateList items;
    for (const auto& item : json) items.push_back(from_json(item, state, source));
    return state.keep(std::move(items));
  }
  if (json.is_object()) {
    TemplateMap map;
    for (const auto& [key, value] : json.items()) map.items.emplace_back(key, from_json(value, state, source));
    return state.keep(std::move(map));
  }
  return TemplateNone{};
}

// Every text of a message but its role is of a source.
TemplateValue messages(const nlohmann::ordered_json& list, TemplateState& state) {
  if (!list.is_array()) return from_json(list, state);
  TemplateList values;
  for (const auto& message : list) {
    if (!message.is_object()) {
      values.push_back(from_json(message, state));
      continue;
    }
    const int i = static_cast<int>(values.size());
    TemplateMap map;
    for (const auto& [key, value] : message.items())
      map.put(key, from_json(value, state, key == "role" ? std::nullopt : std::optional(source_of(i, key))));
    values.push_back(state.keep(std::move(map)));
  }
  return state.keep(std::move(values));
}

}  // namespace

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

ChatTemplate::ChatTemplate(std::string_view source, std::string name, const std::tm& now) {
  render_ = [body = parse_template(source, name), name, now](const nlohmann::ordered_json& variables,
                                                             std::int64_t& steps) {
    const std::int64_t given = std::min(steps, kMostSteps);
    TemplateState state(given, now);
    TemplateText text;
    std::string error;
    try {
      TemplateScope& scope = state.scope(nullptr);
      for (const auto& [key, value] : variables.items())
        scope.variables[key] = key == "messages" ? messages(value, state) : from_json(value, state);
      body(state, scope, text);
    } catch (const DataError& e) {
      error = fmt::format("{}, line {}: {}", name, state.line, e.what());
    }
    steps -= given - state.steps_left();
    if (!error.empty()) throw DataError(error);
    return text;
  };
}

std::string ChatTemplate::render(const nlohmann::ordered_json& variables) const {
  std::int64_t steps = kMostSteps;
  return render(variables, steps).text;
}

void TemplateText::append(const TemplateText& other) {
  const std::size_t shift = text.size();
  text += other.text;
  for (const Origin& origin : other.origins) {
    if (!origins.empty() && origins.back().end == origin.begin + shift && origins.back().source == origin.source)
      origins.back().end = origin.end + shift;
    else
      origins.push_back({origin.begin + shift, origin.end + shift, origin.source});
  }
}

TemplateText TemplateText::part(std::size_t begin, std::size_t size) const {
  TemplateText result = {text.substr(begin, size), {}};
  const std::size_t end = begin + result.text.size();
  for (const Origin& origin : origins)
    if (origin.begin < end && begin < origin.end)
      result.origins.push_back(
          {std::max(origin.begin, begin) - begin, std::min(origin.end, end) - begin, origin.source});
  return result;
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (std::size_t length; !text.empty(); text.remove_prefix(length)) {
    length = length_at(text);
    characters.emplace_back(text.substr(0, length));
  }
  return characters;
}

std::string_view strip_text(std::string_view text, const std::string* characters, bool left, bool right) {
  return without_ends(text, left, right, [&](std::string_view character) {
    return characters ? characters->find(character) != std::string::npos : space_at(character) > 0;
  });
}

std::string upper_text(std::string text) {
  refuse_other_alphabets(text);
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

std::string lower_text(std::string_view text) {
  constexpr std::uint32_t kSigma = 0x3a3;  // its lower case depends on what follows
  std::string result;
  for (std::size_t length; !text.empty(); text.remove_prefix(length)) {
    length = length_at(text);
    std::string_view rest = text;
    const auto code = take_character(rest);
    const std::size_t before = result.size();
    if (code)
      append_lowercase(result, *code);
    else
      result += text[0];
    if (code == kSigma || result.size() - before != length)
      throw DataError(fmt::format("the lower case of {} is not supported", in_quotes(text.substr(0, length))));
  }
  return result;
}

std::string title_text(std::string_view text) {
  refuse_other_alphabets(text);
  std::string result = lower_text(text);
  for (std::size_t i = 0; i < result.size(); ++i)
    if (i == 0 || !is_ascii_letter(result[i - 1])) result[i] = upper_text(result.substr(i, 1))[0];
  return result;
}

std::string capitalize_text(std::string_view text) {
  return upper_text(std::string(text.substr(0, 1))) + lower_text(text.substr(std::min<std::size_t>(1, text.size())));
}

TemplateText replaced(const TemplateText& text, std::string_view old, const TemplateText& with, std::int64_t most) {
  if (old.empty()) throw DataError("replacing an empty text is not supported");
  TemplateText result;
  std::size_t done = 0;
  for (std::size_t at; most != 0 && (at = text.text.find(old, done)) != std::string::npos; --most) {
    result.append(text.part(done, at - done));
    result.append(with);
    done = at + old.size();
  }
  result.append(text.part(done, std::string::npos));
  return result;
}

std::string replace_text(std::string_view text, std::string_view old, std::string_view with) {
  if (old.empty()) throw DataError("replacing an empty text is not supported");
  std::string result;
  for (std::size_t at; (at = text.find(old)) != text.npos; text.remove_prefix(at + old.size()))
    result.append(text.substr(0, at)).append(with);
  return result.append(text);
}

std::vector<std::string_view> split_text(std::string_view text, const std::string* separator, std::int64_t most) {
  if (!separator) return split_at_white_space(text, most);
  if (separator->empty()) throw DataError("splitting at an empty text is not possible");
  std::vector<std::string_view> parts;
  while (most-- != 0) {
    const std::size_t at = text.find(*separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(at + separator->size());
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<std::string_view> rsplit_text(std::string_view text, const std::string& separator, std::int64_t most) {
  if (separator.empty()) throw DataError("splitting at an empty text is not possible");
  std::vector<std::string_view> parts;
  while (most-- != 0) {
    const std::size_t at = text.rfind(separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace braid
