// The words of a chat template, and rendering it with variables.
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/template_interpreter.h"

namespace braid {
namespace {

using Kind = TemplateToken::Kind;

constexpr const char* kSpace = " \t\n\v\f\r";
constexpr const char* kDigits = "0123456789";
constexpr const char* kNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name)
      : text_(replace_text(replace_text(source, "\r\n", "\n"), "\r", "\n")), name_(name) {
    if (text_.ends_with('\n')) text_.pop_back();  // Jinja drops one newline at the end
  }

  std::vector<TemplateToken> run() {
    while (at_ < text_.size()) {
      add_text(next_tag());
      if (at_ == text_.size()) break;
      const std::string begin = text_.substr(at_, 2);
      at_ += 2;
      if (peek('-') || peek('+')) ++at_;
      if (begin == "{#")
        skip_comment();
      else
        tag(begin);
    }
    add(Kind::End, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}, line {}: {}", name_, line_, what));
  }
  bool peek(char c) const { return at_ < text_.size() && text_[at_] == c; }
  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  // Reads up to a place.
  std::string take(std::size_t end) {
    const std::string taken = text_.substr(at_, end - at_);
    line_ += static_cast<int>(std::ranges::count(taken, '\n'));
    at_ = std::min(end, text_.size());
    return taken;
  }
  // Reads what has these characters only.
  std::string take_all_of(const char* characters) { return take(text_.find_first_not_of(characters, at_)); }

  std::size_t next_tag() const {
    for (std::size_t i = text_.find('{', at_); i != std::string::npos; i = text_.find('{', i + 1))
      if (i + 1 < text_.size() && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#')) return i;
    return text_.size();
  }

  // The text up to a tag, without what the tags on both sides strip.
  void add_text(std::size_t end) {
    const bool at_line_start = at_ == 0 || text_[at_ - 1] == '\n', is_last = end == text_.size();
    const std::string taken = take(end);
    std::string_view text = taken;
    const char kind = is_last ? 0 : text_[end + 1], mark = end + 2 < text_.size() ? text_[end + 2] : 0;
    if (strip_next_) text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (!is_last && mark == '-') {
      text = text.substr(0, text.find_last_not_of(kSpace) + 1);  // npos + 1 is 0
    } else if (!is_last && mark != '+' && kind != '{') {
      // lstrip_blocks: white space between the start of the line and the tag goes.
      const std::size_t line_start = text.rfind('\n') + 1;
      if ((line_start > 0 || at_line_start) && text.find_first_not_of(kSpace, line_start) == text.npos)
        text = text.substr(0, line_start);
    }
    if (!text.empty()) add(Kind::Text, std::string(text));
  }

  void close_tag(bool is_output, bool strips) {
    strip_next_ = strips;
    if (!strips && !is_output && peek('\n')) take(at_ + 1);  // trim_blocks
  }

  void skip_comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string::npos) refuse("a comment is not closed");
    const std::string comment = take(end);
    at_ += 2;
    close_tag(/*is_output=*/comment.ends_with('+'), /*strips=*/comment.ends_with('-'));
  }

  void tag(const std::string& begin) {
    const bool is_output = begin == "{{";
    const std::string end = is_output ? "}}" : "%}";
    add(Kind::Operator, begin);
    int open = 0;  // brackets: "}}" may close two of them
    while (true) {
      take_all_of(kSpace);
      if (at_ == text_.size()) refuse("a tag is not closed");
      const bool strips = peek('-'), keeps = peek('+') && !is_output;
      if (open == 0 && std::string_view(text_).substr(at_ + (strips || keeps)).starts_with(end)) {
        at_ += end.size() + (strips || keeps);
        add(Kind::Operator, end);
        return close_tag(is_output || keeps, strips);
      }
      open += peek('(') + peek('[') + peek('{') - peek(')') - peek(']') - peek('}');
      word();
    }
  }

  void word() {
    const char c = text_[at_];
    if (std::string_view(kDigits).find(c) != std::string_view::npos) return number();
    if (std::string_view(kNames).find(c) != std::string_view::npos) return add(Kind::Name, take_all_of(kNames));
    if (c == '\'' || c == '"') return string();
    const bool is_double = contains({"**", "//", "==", "!=", "<=", ">="}, text_.substr(at_, 2));
    if (!is_double && std::string_view("+-*/%~<>=()[]{}|,:.;").find(c) == std::string_view::npos)
      refuse(fmt::format("unexpected {}", in_quotes(text_.substr(at_, 1))));
    add(Kind::Operator, take(at_ + (is_double ? 2 : 1)));
  }

  void number() {
    std::string digits = take_all_of(kDigits);
    if (peek('.') && std::string_view(kDigits).find(text_[at_ + 1]) != std::string_view::npos) {
      ++at_;
      digits += '.' + take_all_of(kDigits);
    }
    add(Kind::Number, digits);
  }

  void string() {
    const char quote = text_[at_++];
    std::string value;
    for (; !peek(quote); ++at_) {
      if (at_ >= text_.size()) refuse("a string is not closed");
      line_ += text_[at_] == '\n';
      if (text_[at_] != '\\') {
        value += text_[at_];
        continue;
      }
      if (++at_ >= text_.size()) refuse("a string is not closed");
      escape(value);
    }
    ++at_;
    add(Kind::String, value);
  }

  void escape(std::string& value) {
    const char c = text_[at_];
    static constexpr std::string_view names = "ntrabfv0\\'\"\n", values = {"\n\t\r\a\b\f\v\0\\'\"", 11};
    if (const std::size_t known = names.find(c); known < values.size()) {
      value += values[known];
    } else if (c == '\n') {
      return;  // a line that goes on
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const std::string hex = text_.substr(at_ + 1, digits);
      if (hex.size() != digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
        refuse("an escape in a string lacks digits");
      const auto code = static_cast<std::uint32_t>(std::stoull(hex, nullptr, 16));
      if (!is_character(code)) refuse("an escape in a string is no character");
      append_utf8(value, code);
      at_ += digits;
    } else {
      value += '\\';
      value += c;
    }
  }

  std::string text_;
  const std::string& name_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool strip_next_ = false;  // the last tag ended with -
  std::vector<TemplateToken> tokens_;
};

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
  if (json.is_array())
    return state.keep(vector_of<TemplateValue>(json, [&](auto& item) { return from_json(item, state, source); }));
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

std::vector<TemplateToken> lex_template(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

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

}  // namespace braid
