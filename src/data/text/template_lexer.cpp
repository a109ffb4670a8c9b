#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/template_interpreter.h"

namespace braid {
namespace {

using Kind = TemplateToken::Kind;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::string with_unix_newlines(std::string_view source) {
  std::string result;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && source.substr(i + 1).starts_with('\n')) continue;
    result += source[i] == '\r' ? '\n' : source[i];
  }
  return result;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : text_(with_unix_newlines(source)), name_(name) {
    if (text_.ends_with('\n')) text_.pop_back();  // Jinja drops one newline at the end
  }

  std::vector<TemplateToken> run() {
    while (at_ < text_.size()) {
      const std::size_t open = next_tag();
      add_text(open);
      if (at_ == text_.size()) break;
      const char kind = text_[at_ + 1];
      at_ += 2;
      if (peek('-') || peek('+')) ++at_;
      if (kind == '#')
        skip_comment();
      else
        tag(kind == '{');
    }
    add(Kind::End, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}, line {}: {}", name_, line_, what));
  }
  bool peek(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool follows(std::string_view expected) const { return std::string_view(text_).substr(at_).starts_with(expected); }
  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  std::size_t next_tag() const {
    for (std::size_t i = text_.find('{', at_); i != std::string::npos; i = text_.find('{', i + 1))
      if (i + 1 < text_.size() && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#')) return i;
    return text_.size();
  }

  // The text up to a tag, without what the tags on both sides strip.
  void add_text(std::size_t end) {
    std::string_view text = std::string_view(text_).substr(at_, end - at_);
    line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    const bool is_last = end == text_.size();
    const char kind = is_last ? 0 : text_[end + 1], mark = end + 2 < text_.size() ? text_[end + 2] : 0;
    if (strip_next_) text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
    if (!is_last && mark == '-') {
      while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    } else if (!is_last && mark != '+' && kind != '{') {
      // lstrip_blocks: white space between the start of the line and the tag goes.
      const std::size_t line_start = text.rfind('\n') + 1;  // npos + 1 is 0
      const bool at_line_start = line_start > 0 || at_ == 0 || text_[at_ - 1] == '\n';
      if (at_line_start && text.find_first_not_of(" \t\v\f\r", line_start) == std::string_view::npos)
        text = text.substr(0, line_start);
    }
    if (!text.empty()) add(Kind::Text, std::string(text));
    at_ = end;
    strip_next_ = false;
  }

  void close_tag(bool is_output, bool strips) {
    strip_next_ = strips;
    if (!strips && !is_output && peek('\n')) {  // trim_blocks
      ++at_;
      ++line_;
    }
  }

  void skip_comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string::npos) refuse("a comment is not closed");
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    const bool strips = end > at_ && text_[end - 1] == '-', keeps = end > at_ && text_[end - 1] == '+';
    at_ = end + 2;
    close_tag(/*is_output=*/keeps, strips);
  }

  void tag(bool is_output) {
    add(is_output ? Kind::OutputBegin : Kind::TagBegin, "");
    const std::string end = is_output ? "}}" : "%}";
    int open = 0;  // brackets: "}}" may close two of them
    while (true) {
      while (at_ < text_.size() && is_space(text_[at_])) line_ += text_[at_++] == '\n';
      if (at_ == text_.size()) refuse("a tag is not closed");
      const bool marked =
          (peek('-') || (peek('+') && !is_output)) && std::string_view(text_).substr(at_ + 1).starts_with(end);
      if (open == 0 && (marked || follows(end))) {
        const bool strips = peek('-'), keeps = peek('+');
        at_ += end.size() + marked;
        add(is_output ? Kind::OutputEnd : Kind::TagEnd, "");
        return close_tag(is_output || keeps, strips);
      }
      open += peek('(') + peek('[') + peek('{') - peek(')') - peek(']') - peek('}');
      word();
    }
  }

  void word() {
    const char c = text_[at_];
    if (is_letter(c)) {
      const std::size_t begin = at_;
      while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
      return add(Kind::Name, text_.substr(begin, at_ - begin));
    }
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string();
    const bool is_double = contains({"**", "//", "==", "!=", "<=", ">="}, text_.substr(at_, 2));
    if (!is_double && std::string_view("+-*/%~<>=()[]{}|,:.;").find(c) == std::string_view::npos)
      refuse(fmt::format("unexpected {}", in_quotes(std::string_view(text_).substr(at_, 1))));
    add(Kind::Operator, text_.substr(at_, is_double ? 2 : 1));
    at_ += is_double ? 2 : 1;
  }

  void number() {
    const std::size_t begin = at_;
    bool is_float = false;
    while (at_ < text_.size() && (is_digit(text_[at_]) || (text_[at_] == '.' && !is_float && at_ + 1 < text_.size() &&
                                                           is_digit(text_[at_ + 1])))) {
      is_float |= text_[at_] == '.';
      ++at_;
    }
    add(is_float ? Kind::Float : Kind::Integer, text_.substr(begin, at_ - begin));
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

}  // namespace

std::vector<TemplateToken> lex_template(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace braid
