#include "launch/shell_text.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"

namespace braid {
namespace {

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || std::isdigit(static_cast<unsigned char>(c)); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool ends_word(char c) { return is_blank(c) || std::string_view("\n;&|()<>").find(c) != std::string_view::npos; }

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

// Collects a word's literal text and where expansions interrupt it.
class WordValue {
 public:
  void add(char c) { literal_ += c; }
  void add(std::string_view text) { literal_ += text; }
  void expansion() {
    if (!expands_) head_ = literal_;
    expands_ = true;
    literal_.clear();
  }
  void finish(ShellWord& word) const {
    word.tail = literal_;
    word.head = expands_ ? head_ : literal_;
    if (!expands_) word.value = literal_;
  }

 private:
  std::string literal_, head_;
  bool expands_ = false;
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<ShellCommand> commands() {
    list(/*closing=*/'\0', &found_);
    return std::move(found_);
  }

 private:
  struct HereDocument {
    std::string delimiter;
    bool strips_tabs;
  };
  // One level of a text: the whole, or what is between $( and ).
  struct Level {
    std::vector<ShellCommand>* out;  // null: walked past
    ShellCommand command{};
    bool skips_words = false;  // of `for x in a b`, `case x in`
    int parentheses = 0, cases = 0;
    std::vector<HereDocument> here_documents{};
  };

  bool at_end() const { return at_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool next_is(std::string_view token) const { return text_.substr(at_, token.size()) == token; }

  [[noreturn]] void unbalanced(const char* what, std::size_t begin) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(begin), '\n');
    const std::string_view rest = text_.substr(begin, 40);
    throw ConfigError({fmt::format("{} does not close: {}", what, rest.substr(0, rest.find('\n'))),
                       fmt::format("line {} of the command", line),
                       "close it, or put a backslash in front if the character itself is meant"});
  }

  // --- lists of commands --------------------------------------------------------------------------------------------
  void list(char closing, std::vector<ShellCommand>* out) {
    const std::size_t begin = at_;
    Level level{.out = out};
    while (!at_end()) {
      if (closing && peek() == closing && level.parentheses == 0 && level.cases == 0) {
        end_command(level);
        return;
      }
      element(level);
    }
    end_command(level);
    if (closing) unbalanced("a parenthesis", begin > 0 ? begin - 1 : 0);
    if (level.parentheses > 0) unbalanced("a parenthesis", text_.find('('));
  }

  void element(Level& level) {
    const char c = peek();
    if (is_blank(c)) {
      ++at_;
    } else if (next_is("\\\n")) {
      at_ += 2;
    } else if (c == '\n') {
      ++at_;
      end_command(level);
      for (const HereDocument& document : level.here_documents) pass_here_document(document);
      level.here_documents.clear();
    } else if (c == '#') {
      while (!at_end() && peek() != '\n') ++at_;
    } else if (next_is("((") && level.command.words.empty()) {
      pass_balanced();
    } else if (redirection(level)) {
      return;
    } else if (c == ';' || c == '&' || c == '|' || c == '(' || c == ')') {
      separator(level);
    } else {
      take_word(level);
    }
  }

  void separator(Level& level) {
    const char c = text_[at_++];
    end_command(level);
    if (c == '(') ++level.parentheses;
    // In `case`, a pattern ends with a parenthesis that none opened.
    if (c == ')' && level.parentheses > 0)
      --level.parentheses;
    else if (c == ')' && level.cases == 0)
      unbalanced("a command before ')'", at_ - 1);
  }

  void end_command(Level& level) {
    const bool empty = level.command.words.empty() && level.command.assignments.empty();
    if (!empty && level.out) level.out->push_back(level.command);
    level.command = {};
    level.skips_words = false;
  }

  // [n]>file, <<EOF, &>file, <<<word ... The target is walked past.
  bool redirection(Level& level) {
    std::size_t begin = at_;
    while (begin < text_.size() && std::isdigit(static_cast<unsigned char>(text_[begin]))) ++begin;
    for (const char* token : {"&>>", "&>", "<<<", "<<-", "<<", "<&", "<>", ">>", ">&", ">|", "<", ">"}) {
      const std::string_view op = token;
      if (text_.substr(begin, op.size()) != op || (op[0] == '&' && begin != at_)) continue;
      if (op.size() == 1 && begin == at_ && begin + 1 < text_.size() && text_[begin + 1] == '(')
        return false;  // <(...)
      at_ = begin + op.size();
      pass_blanks();
      if (at_end() || (ends_word(peek()) && !next_is("<(") && !next_is(">("))) return true;
      const ShellWord target = word();
      if (op == "<<" || op == "<<-")
        level.here_documents.push_back({.delimiter = delimiter_of(target), .strips_tabs = op == "<<-"});
      return true;
    }
    return false;
  }

  // Quotes are removed from a delimiter, nothing in it is expanded.
  std::string delimiter_of(const ShellWord& word) const {
    return word.value ? *word.value : std::string(text_.substr(word.begin, word.end - word.begin));
  }

  void pass_blanks() {
    while (is_blank(peek()) || next_is("\\\n")) at_ += peek() == '\\' ? 2 : 1;
  }

  void pass_here_document(const HereDocument& document) {
    while (!at_end()) {
      const std::size_t end = std::min(text_.find('\n', at_), text_.size());
      std::string_view line = text_.substr(at_, end - at_);
      at_ = std::min(end + 1, text_.size());
      if (document.strips_tabs) line.remove_prefix(std::min(line.find_first_not_of('\t'), line.size()));
      if (line == document.delimiter) return;
    }
  }

  void take_word(Level& level) {
    ShellWord found = word();
    ShellCommand& command = level.command;
    if (level.skips_words) {
      level.skips_words = found.value != "in" || level.cases == 0;
      return;
    }
    const bool quoted = found.value && *found.value != text_.substr(found.begin, found.end - found.begin);
    if (command.words.empty() && command.assignments.empty() && found.value && !quoted && reserved(level, *found.value))
      return;
    if (command.words.empty() && is_assignment(found))
      command.assignments.push_back(std::move(found));
    else
      command.words.push_back(std::move(found));
  }

  static bool reserved(Level& level, const std::string& word) {
    static const std::set<std::string> followed_by_command = {"if", "then", "elif", "else", "fi", "while", "until",
                                                              "do", "done", "{",    "}",    "!",  "time",  "esac"};
    static const std::set<std::string> followed_by_names = {"for", "select", "case", "function"};
    if (word == "case") ++level.cases;
    if (word == "esac" && level.cases > 0) --level.cases;
    if (followed_by_names.count(word)) level.skips_words = true;
    return followed_by_command.count(word) || followed_by_names.count(word);
  }

  bool is_assignment(const ShellWord& word) const {
    const std::string_view raw = text_.substr(word.begin, word.end - word.begin);
    std::size_t equals = raw.find('=');
    if (equals == std::string_view::npos) return false;
    std::string_view name = raw.substr(0, equals);
    if (!name.empty() && name.back() == '+') name.remove_suffix(1);
    return is_identifier(name.substr(0, name.find('[')));
  }

  // --- words --------------------------------------------------------------------------------------------------------
  ShellWord word() {
    ShellWord found;
    found.begin = at_;
    WordValue value;
    while (!at_end() && (!ends_word(peek()) || opens_within_word(found.begin))) word_part(found.begin, value);
    found.end = at_;
    value.finish(found);
    return found;
  }

  // The parentheses of name=(...) and <(...).
  bool opens_within_word(std::size_t begin) const {
    if ((peek() == '<' || peek() == '>') && peek(1) == '(') return at_ == begin;
    return peek() == '(' && at_ > begin && text_[at_ - 1] == '=';
  }

  void word_part(std::size_t begin, WordValue& value) {
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

  // Patterns, braces and the home folder. A lone [ or { is a word like any other.
  bool is_expanded(char c, std::size_t begin) const {
    const bool alone = at_ - 1 == begin && (at_end() || ends_word(peek()));
    if (c == '*' || c == '?') return true;
    if (c == '[') return !alone && text_.find(']', at_) < word_end();
    if (c == '{') return !alone && text_.substr(at_, word_end() - at_).find_first_of(",.") != std::string_view::npos;
    return c == '~' && at_ - 1 == begin;
  }

  std::size_t word_end() const {
    std::size_t end = at_;
    while (end < text_.size() && !ends_word(text_[end])) ++end;
    return end;
  }

  std::string_view single_quoted() {
    const std::size_t begin = at_, end = text_.find('\'', at_ + 1);
    if (end == std::string_view::npos) unbalanced("a single quote", begin);
    at_ = end + 1;
    return text_.substr(begin + 1, end - begin - 1);
  }

  void double_quoted(WordValue& value) {
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

  void dollar_or_backtick(WordValue& value, bool in_quotes) {
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

  void pass_backticks() {
    const std::size_t begin = at_;
    for (++at_; peek() != '`' || at_end(); ++at_) {
      if (at_end()) unbalanced("a backtick", begin);
      if (peek() == '\\') ++at_;
    }
    ++at_;
  }

  // Quotes and expansions in something that is walked past; anything else is one character.
  void pass_one() {
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

  void pass_braces() {
    const std::size_t begin = at_;
    for (at_ += 2; peek() != '}' || at_end();) {
      if (at_end()) unbalanced("a brace", begin);
      pass_one();
    }
    ++at_;
  }

  void pass_balanced() {
    const std::size_t begin = at_;
    int depth = 0;
    do {
      if (at_end()) unbalanced("a parenthesis", begin);
      if (peek() == '(') ++depth;
      if (peek() == ')') --depth;
      pass_one();
    } while (depth > 0);
  }

  // $'...'
  void ansi_quoted(WordValue& value) {
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

  std::string ansi_escape() {
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

  unsigned long number(int base, int digits) {
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

  const std::string_view text_;
  std::size_t at_ = 0;
  std::vector<ShellCommand> found_;
};

}  // namespace

std::string shell_quoted(std::string_view word) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("_-+./:,@%=^").find(c) != std::string_view::npos;
  };
  // In the place of a program, NAME=x is an assignment.
  const bool assigns = is_identifier(word.substr(0, word.find('='))) && word.find('=') != std::string_view::npos;
  if (!word.empty() && !assigns && std::all_of(word.begin(), word.end(), plain)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'')
      quoted += R"('\'')";
    else
      quoted += c;
  }
  return quoted + "'";
}

std::string joined_quoted(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_quoted(word);
  return text;
}

std::vector<ShellCommand> simple_commands(std::string_view text) { return Lexer(text).commands(); }

bool is_identifier(std::string_view name) {
  return !name.empty() && is_name_start(name[0]) && std::all_of(name.begin(), name.end(), is_name_part);
}

}  // namespace braid
