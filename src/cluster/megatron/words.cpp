// The words of a shell text: quotes, expansions, and the known part of a word's value.
#include <algorithm>
#include <cctype>

#include "cluster/megatron/lexer.h"

namespace braid {
namespace {

void append_utf8(std::string& text, unsigned long code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0 | code >> 6);
    text += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    text += static_cast<char>(0xe0 | code >> 12);
    text += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    text += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    text += static_cast<char>(0xf0 | (code >> 18 & 0x07));
    text += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    text += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    text += static_cast<char>(0x80 | (code & 0x3f));
  }
}

}  // namespace

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || std::isdigit(static_cast<unsigned char>(c)); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool ends_word(char c) { return is_blank(c) || std::string_view("\n;&|()<>").find(c) != std::string_view::npos; }

bool is_identifier(std::string_view name) {
  return !name.empty() && is_name_start(name[0]) && std::all_of(name.begin(), name.end(), is_name_part);
}

ShellWord ShellLexer::word() {
  ShellWord found;
  found.begin = at_;
  WordValue value;
  while (!at_end() && (!ends_word(peek()) || opens_within_word(found.begin))) word_part(found.begin, value);
  found.end = at_;
  value.finish(found);
  return found;
}

bool ShellLexer::opens_within_word(std::size_t begin) const {
  if ((peek() == '<' || peek() == '>') && peek(1) == '(') return at_ == begin;
  return peek() == '(' && at_ > begin && text_[at_ - 1] == '=';
}

void ShellLexer::word_part(std::size_t begin, WordValue& value) {
  const char c = peek();
  if (c == '\\') {
    if (peek(1) != '\n') value.add(at_ + 1 < text_.size() ? peek(1) : '\\');
    at_ = std::min(at_ + 2, text_.size());
  } else if (c == '\'') {
    value.add(single_quoted());
  } else if (c == '"') {
    double_quoted(value);
  } else if (c == '$' || c == '`') {
    dollar_or_backtick(value, /*in_quotes=*/false);
  } else if (c == '(' || c == '<' || c == '>') {
    at_ += c == '(' ? 1 : 2;
    list(')', nullptr);
    ++at_;
    value.expansion();
  } else {
    ++at_;
    if (is_expanded(c, begin))
      value.expansion();
    else
      value.add(c);
  }
}

bool ShellLexer::is_expanded(char c, std::size_t begin) {
  const bool alone = at_ - 1 == begin && (at_end() || ends_word(peek()));
  if (c == '*' || c == '?') return true;
  if (c == '[') return !alone && unbroken().last_bracket >= at_;
  if (c == '{') return !alone && unbroken().last_comma_or_dot >= at_;
  return c == '~' && at_ - 1 == begin;
}

const ShellLexer::Unbroken& ShellLexer::unbroken() {
  if (unbroken_.begin <= at_ && at_ < unbroken_.end) return unbroken_;
  unbroken_ = {.begin = at_, .end = at_};
  for (std::size_t& end = unbroken_.end; end < text_.size() && !ends_word(text_[end]); ++end) {
    if (text_[end] == ']') unbroken_.last_bracket = end;
    if (text_[end] == ',' || text_[end] == '.') unbroken_.last_comma_or_dot = end;
  }
  return unbroken_;
}

std::string_view ShellLexer::single_quoted() {
  const std::size_t begin = at_, end = text_.find('\'', at_ + 1);
  if (end == std::string_view::npos) unbalanced("a single quote", begin);
  at_ = end + 1;
  return text_.substr(begin + 1, end - begin - 1);
}

void ShellLexer::double_quoted(WordValue& value) {
  const std::size_t begin = at_++;
  while (peek() != '"' || at_end()) {
    if (at_end()) unbalanced("a double quote", begin);
    if (peek() == '\\' && std::string_view("$`\"\\\n").find(peek(1)) != std::string_view::npos && peek(1)) {
      if (peek(1) != '\n') value.add(peek(1));
      at_ += 2;
    } else if (peek() == '$' || peek() == '`') {
      dollar_or_backtick(value, /*in_quotes=*/true);
    } else {
      value.add(text_[at_++]);
    }
  }
  ++at_;
}

void ShellLexer::dollar_or_backtick(WordValue& value, bool in_quotes) {
  const Nested nested(*this, at_);
  const char next = peek(1);
  if (peek() == '`') {
    pass_backticks();
  } else if (!in_quotes && next == '\'') {
    return ansi_quoted(value);
  } else if (!in_quotes && next == '"') {
    ++at_;
    return double_quoted(value);
  } else if (next_is("$((")) {
    ++at_;
    pass_balanced();
  } else if (next == '(') {
    at_ += 2;
    list(')', nullptr);
    ++at_;
  } else if (next == '{') {
    pass_braces();
  } else if (is_name_start(next)) {
    for (++at_; is_name_part(peek());) ++at_;
  } else if (next && std::string_view("0123456789@*#?-$!").find(next) != std::string_view::npos) {
    at_ += 2;
  } else {
    ++at_;
    return value.add('$');
  }
  value.expansion();
}

void ShellLexer::pass_backticks() {
  const std::size_t begin = at_;
  for (++at_; peek() != '`' || at_end(); ++at_) {
    if (at_end()) unbalanced("a backtick", begin);
    if (peek() == '\\') ++at_;
  }
  ++at_;
}

void ShellLexer::pass_one() {
  WordValue ignored;
  if (peek() == '\\')
    at_ = std::min(at_ + 2, text_.size());
  else if (peek() == '\'')
    single_quoted();
  else if (peek() == '"')
    double_quoted(ignored);
  else if (peek() == '$' || peek() == '`')
    dollar_or_backtick(ignored, /*in_quotes=*/false);
  else
    ++at_;
}

void ShellLexer::pass_braces() {
  const std::size_t begin = at_;
  for (at_ += 2; peek() != '}' || at_end();) {
    if (at_end()) unbalanced("a brace", begin);
    pass_one();
  }
  ++at_;
}

void ShellLexer::pass_balanced() {
  const std::size_t begin = at_;
  int depth = 0;
  do {
    if (at_end()) unbalanced("a parenthesis", begin);
    if (peek() == '(') ++depth;
    if (peek() == ')') --depth;
    pass_one();
  } while (depth > 0);
}

void ShellLexer::ansi_quoted(WordValue& value) {
  const std::size_t begin = at_;
  at_ += 2;
  while (peek() != '\'' || at_end()) {
    if (at_end()) unbalanced("a single quote", begin);
    if (peek() == '\\' && at_ + 1 < text_.size())
      value.add(ansi_escape());
    else
      value.add(text_[at_++]);
  }
  ++at_;
}

std::string ShellLexer::ansi_escape() {
  static constexpr std::string_view names = "abeEfnrtv", codes = "\a\b\033\033\f\n\r\t\v";
  const char c = peek(1);
  at_ += 2;
  std::string text;
  if (const std::size_t known = names.find(c); known != std::string_view::npos)
    text = codes[known];
  else if (c == 'x')
    text = static_cast<char>(number(16, 2));
  else if (c == 'u' || c == 'U')
    append_utf8(text, number(16, c == 'u' ? 4 : 8));
  else if (c >= '0' && c <= '7')
    --at_, text = static_cast<char>(number(8, 3));
  else if (c == '\\' || c == '\'' || c == '"' || c == '?')
    text = c;
  else
    text = {'\\', c};
  return text;
}

unsigned long ShellLexer::number(int base, int digits) {
  const auto digit = [base](char c) {
    const int value = std::isdigit(static_cast<unsigned char>(c))    ? c - '0'
                      : std::isxdigit(static_cast<unsigned char>(c)) ? std::tolower(c) - 'a' + 10
                                                                     : base;
    return value < base ? value : -1;
  };
  unsigned long value = 0;
  for (; digits > 0 && digit(peek()) >= 0; --digits, ++at_)
    value = value * static_cast<unsigned long>(base) + static_cast<unsigned long>(digit(peek()));
  return value;
}

}  // namespace braid
