#include "cluster/megatron/commands.h"
#include "base/config.h"
#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"

namespace braid {
namespace {

// Character classes of bash.
bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || std::isdigit(static_cast<unsigned char>(c)); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool ends_word(char c) { return is_blank(c) || std::string_view("\n;&|()<>").find(c) != std::string_view::npos; }

// Reads lists of commands and the words in them: each needs the other, since a word may contain $(a list).
class ShellLexer {
 public:
  explicit ShellLexer(std::string_view text, std::size_t at = 0, int depth = 0) : text_(text), at_(at), depth_(depth) {}

  ShellCommands commands() {
    list('\0');
    return std::move(commands_);
  }

 private:
  struct HereDocument {
    std::string delimiter;
    bool strips_tabs;
  };

  bool at_end() const { return at_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool next_is(std::string_view token) const { return text_.substr(at_, token.size()) == token; }

  [[noreturn]] void unbalanced(const char* what, std::size_t begin) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(begin), '\n');
    const std::string_view rest = text_.substr(begin, 40);
    throw ConfigError({fmt::format("{} is not closed: {}", what, rest.substr(0, rest.find('\n'))),
                       fmt::format("line {} of the command", line),
                       "close it, or put a backslash in front of a literal character"});
  }

  // --- lists of commands -----------------------------------------------------------------------------------------
  // The whole text, or with `closing` the text between $( and ).
  void list(char closing) {
    const std::size_t begin = at_;
    while (!at_end() && !(closing && peek() == closing && open_.empty())) element();
    end_command();
    constructs_ = 0, joined_ = false;
    end_statement();
    if (closing && at_end()) unbalanced("a parenthesis", begin > 0 ? begin - 1 : 0);
    if (open_.find('(') != std::string::npos) unbalanced("a parenthesis", text_.find('('));
  }

  // The commands of $(...) are dropped.
  void pass_list() {
    ShellLexer inner(text_, at_, deeper());
    inner.list(')');
    at_ = inner.at_ + 1;
  }

  // Limits the nesting depth, so that hostile text cannot overflow the stack.
  int deeper() const {
    constexpr int kDeepest = 200;
    if (depth_ == kDeepest) unbalanced("a list nested too deeply", at_);
    return depth_ + 1;
  }

  void element() {
    const char c = peek();
    if (is_blank(c)) {
      ++at_;
    } else if (next_is("\\\n")) {
      at_ += 2;
    } else if (c == '\n') {
      ++at_;
      end_command();
      for (const HereDocument& document : std::exchange(here_documents_, {})) pass_here_document(document);
      end_statement();
    } else if (c == '#') {
      while (!at_end() && peek() != '\n') ++at_;
    } else if (next_is("((") && command_.words.empty()) {
      begin_statement();
      pass_balanced();
    } else if (const std::size_t begin = at_; redirection()) {
      begin_command(begin);
    } else if (std::string_view(";&|()").find(c) != std::string_view::npos) {
      separator();
    } else {
      take_word();
    }
  }

  void separator() {
    const char c = text_[at_++], next = peek();
    const bool in_case = open_.ends_with('c');
    if (c == '(') begin_statement(at_ - 1);
    end_command();
    if ((c == '&' || c == '|') && next == c) {
      ++at_;
      joined_ = true;
    } else if (c == '|') {
      if (next == '&') ++at_;
      joined_ = after_pipe_ = true;
    } else if (c == '&') {
      for (std::size_t i = list_begin_; i < commands_.size(); ++i) commands_[i].in_background = true;
      end_statement();
    } else if (c == ';') {  // of `case`: ;; ;& ;;&
      if (peek() == ';') ++at_;
      if (peek() == '&') ++at_;
      end_statement();
    } else if (c == '(') {
      open_ += '(';
    } else if (!in_case) {  // there it ends a pattern
      if (open_.empty()) unbalanced("a command before ')'", at_ - 1);
      open_.pop_back();
    }
  }

  void end_command() {
    if (!command_.words.empty() || !command_.assignments.empty()) {
      command_.excerpt = excerpt();
      command_.reads_pipe = after_pipe_;
      command_.nested = is_nested();
      if (!joined_) list_begin_ = commands_.size();
      commands_.push_back(command_);
      after_pipe_ = joined_ = false;
    } else if (!commands_.empty()) {  // (a; b) >file
      auto& outputs = commands_.back().outputs;
      outputs.insert(outputs.end(), command_.outputs.begin(), command_.outputs.end());
    }
    command_ = {};
  }

  bool is_nested() const { return !open_.empty() || constructs_ > 0; }

  void begin_statement(std::optional<std::size_t> begin = std::nullopt) {
    if (!std::exchange(in_statement_, true)) statement_begin_ = begin.value_or(at_);
  }

  void end_statement() {
    if (is_nested() || joined_) return;
    for (; statement_first_ < commands_.size(); ++statement_first_) {
      commands_[statement_first_].statement_begin = statement_begin_;
      commands_[statement_first_].statement_end = at_;
    }
    in_statement_ = false;
  }

  // With the word or redirection from `begin` to here.
  void begin_command(std::size_t begin) {
    begin_statement(begin);
    if (command_.end == 0) command_.begin = begin;
    command_.end = at_;
  }

  std::string excerpt() const {
    constexpr std::size_t kMost = 60;
    const ShellWord& first = command_.assignments.empty() ? command_.words.front() : command_.assignments.front();
    const ShellWord& last = command_.words.empty() ? command_.assignments.back() : command_.words.back();
    std::string text(text_.substr(first.begin, std::min(last.end - first.begin, kMost)));
    std::ranges::replace(text, '\n', ' ');
    return text + (last.end - first.begin > kMost ? "..." : "");
  }

  // [n]>file, <<EOF, &>file, <<<word ... Consumes the target.
  bool redirection() {
    std::size_t begin = at_;
    while (begin < text_.size() && std::isdigit(static_cast<unsigned char>(text_[begin]))) ++begin;
    for (const std::string_view op : {"&>>", "&>", "<<<", "<<-", "<<", "<&", "<>", ">>", ">&", ">|", "<", ">"}) {
      if (text_.substr(begin, op.size()) != op || (op[0] == '&' && begin != at_)) continue;
      if (op.size() == 1 && begin == at_ && peek(1) == '(') return false;  // <(...)
      at_ = begin + op.size();
      while (is_blank(peek()) || next_is("\\\n")) at_ += peek() == '\\' ? 2 : 1;
      if (at_end() || (ends_word(peek()) && !next_is("<(") && !next_is(">("))) return true;
      const ShellWord target = word();
      if (op == "<<" || op == "<<-") here_documents_.push_back({target.text, op == "<<-"});
      const bool of_descriptor =
          op == ">&" && target.value && target.value->find_first_not_of("0123456789-") == target.value->npos;
      if (op.find('>') != op.npos && op != "<>" && !of_descriptor) command_.outputs.push_back(target);
      return true;
    }
    return false;
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

  void take_word() {
    // A command may follow these. The words of `for`, `case` and `function` look like a command's.
    static const std::vector<std::string> kReserved =
        split("if then elif else fi while until do done { } ! time esac", ' ');
    static const std::vector<std::string> kOpening = split("if for while until select {", ' ');
    static const std::vector<std::string> kClosing = split("fi done }", ' ');
    begin_statement();
    ShellWord found = word();
    if (command_.words.empty() && command_.assignments.empty()) {
      if (found.raw == "case") open_ += 'c';
      if (found.raw == "esac" && open_.ends_with('c')) open_.pop_back();
      if (contains(kOpening, found.raw)) ++constructs_;
      if (contains(kClosing, found.raw) && constructs_ > 0) --constructs_;
      if (contains(kReserved, found.raw)) return;
    }
    begin_command(found.begin);
    std::string_view name = std::string_view(found.raw).substr(0, found.raw.find('='));
    const bool has_equals = name.size() < found.raw.size();
    if (name.ends_with('+')) name.remove_suffix(1);
    const bool is_assignment = has_equals && is_identifier(name.substr(0, name.find('[')));
    (is_assignment && command_.words.empty() ? command_.assignments : command_.words).push_back(std::move(found));
  }

  // --- words -----------------------------------------------------------------------------------------------------
  void add(std::string_view literal) {
    word_.text += literal;
    word_.tail += literal;
    if (!expands_) word_.head += literal;
  }
  void expansion(std::size_t begin) {
    word_.text += text_.substr(begin, at_ - begin);
    word_.tail.clear();
    expands_ = true;
  }

  ShellWord word() {
    word_ = {.begin = at_};
    expands_ = false;
    while (!at_end() && (!ends_word(peek()) || opens_within_word())) word_part();
    word_.end = at_;
    word_.raw = text_.substr(word_.begin, at_ - word_.begin);
    if (!expands_) word_.value = word_.text;
    return std::move(word_);
  }

  // The parentheses of name=(...) and <(...).
  bool opens_within_word() const {
    if ((peek() == '<' || peek() == '>') && peek(1) == '(') return at_ == word_.begin;
    return peek() == '(' && at_ > word_.begin && text_[at_ - 1] == '=';
  }

  void word_part() {
    const char c = peek();
    const std::size_t begin = at_;
    if (c == '\\') {
      if (peek(1) != '\n') add(at_ + 1 < text_.size() ? text_.substr(at_ + 1, 1) : "\\");
      at_ = std::min(at_ + 2, text_.size());
    } else if (c == '\'') {
      const std::size_t end = text_.find('\'', begin + 1);
      if (end == text_.npos) unbalanced("a single quote", begin);
      at_ = end + 1;
      add(text_.substr(begin + 1, end - begin - 1));
    } else if (c == '"') {
      double_quoted();
    } else if (c == '$' || c == '`') {
      dollar_or_backtick(/*in_quotes=*/false);
    } else if (c == '(' || c == '<' || c == '>') {
      at_ += c == '(' ? 1 : 2;
      pass_list();
      expansion(begin);
    } else {
      ++at_;
      // File patterns, braces and the home folder. [, [[ and { alone are ordinary words.
      const bool is_first = begin == word_.begin;
      const bool is_alone = is_first ? at_end() || ends_word(peek()) || c == peek() : c == text_[begin - 1];
      if (c == '*' || c == '?' || (!is_alone && (c == '[' || c == '{')) || (c == '~' && is_first))
        expansion(begin);
      else
        add(text_.substr(begin, 1));
    }
  }

  void double_quoted() {
    const std::size_t begin = at_++;
    while (peek() != '"' || at_end()) {
      if (at_end()) unbalanced("a double quote", begin);
      if (peek() == '\\' && peek(1) && std::string_view("$`\"\\\n").find(peek(1)) != std::string_view::npos) {
        if (peek(1) != '\n') add(text_.substr(at_ + 1, 1));
        at_ += 2;
      } else if (peek() == '$' || peek() == '`') {
        dollar_or_backtick(/*in_quotes=*/true);
      } else {
        add(text_.substr(at_++, 1));
      }
    }
    ++at_;
  }

  void dollar_or_backtick(bool in_quotes) {
    const std::size_t begin = at_;
    const char next = peek(1);
    if (peek() == '`') {
      pass_until('`', "a backtick");
    } else if (!in_quotes && next == '\'') {
      ++at_;
      pass_until('\'', "a single quote");
    } else if (next_is("$((")) {
      ++at_;
      pass_balanced();
    } else if (next == '(') {
      at_ += 2;
      pass_list();
    } else if (next == '{') {
      pass_braces();
    } else if (is_name_start(next)) {
      for (++at_; is_name_part(peek());) ++at_;
    } else if (next && std::string_view("0123456789@*#?-$!").find(next) != std::string_view::npos) {
      at_ += 2;
    } else {
      ++at_;
      return add("$");
    }
    expansion(begin);
  }

  // Of `...` and $'...', in which a backslash may stand before the closing character.
  void pass_until(char closing, const char* what) {
    const std::size_t begin = at_;
    for (++at_; peek() != closing || at_end(); ++at_) {
      if (at_end()) unbalanced(what, begin);
      if (peek() == '\\') ++at_;
    }
    ++at_;
  }

  // Skips a quote or an expansion, or else one character.
  void pass_one() {
    if (std::string_view("\\'\"$`").find(peek()) == std::string_view::npos) {
      ++at_;
      return;
    }
    ShellLexer inner(text_, at_, deeper());
    inner.word_part();
    at_ = inner.at_;
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

  const std::string_view text_;
  std::size_t at_;
  const int depth_;  // nesting of lists and expansions
  ShellCommands commands_;
  ShellCommand command_;
  std::string open_;  // open constructs: '(' for a parenthesis, 'c' for a case
  std::vector<HereDocument> here_documents_;
  bool after_pipe_ = false, joined_ = false;  // the next command follows |; it follows |, && or ||
  std::size_t list_begin_ = 0;                // index of the first command joined with the last one
  int constructs_ = 0;                        // open ones that end with a word: if, for, {
  bool in_statement_ = false;
  std::size_t statement_first_ = 0, statement_begin_ = 0;  // index of its first command; where it begins
  ShellWord word_;
  bool expands_ = false;  // something in the word
};

}  // namespace

bool is_identifier(std::string_view name) {
  return !name.empty() && is_name_start(name[0]) && std::ranges::all_of(name, is_name_part);
}

std::string shell_quoted(std::string_view word) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("_-+./:,@%=^").find(c) != std::string_view::npos;
  };
  // As the first word of a command, NAME=x is an assignment.
  const bool assigns = is_identifier(word.substr(0, word.find('='))) && word.find('=') != std::string_view::npos;
  if (!word.empty() && !assigns && std::ranges::all_of(word, plain)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? R"('\'')" : std::string(1, c);
  return quoted + "'";
}

std::string joined_quoted(const std::vector<std::string>& words) {
  return joined(vector_of<std::string>(words, shell_quoted), " ");
}

ShellCommands simple_commands(std::string_view text) { return ShellLexer(text).commands(); }

std::string base_name(const ShellWord& word) {
  const std::size_t slash = word.tail.rfind('/');
  if (!word.value && slash == std::string::npos) return "";
  return word.tail.substr(slash == std::string::npos ? 0 : slash + 1);
}

std::vector<std::string> plain_words(std::string_view text, const char* flag) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError({what, flag,
                       "only the words of one command are read: write the values, or give the script to --run-script, "
                       "which runs it"});
  };
  std::vector<std::string> words;
  for (const ShellCommand& command : simple_commands(text)) {
    const auto& more = command.words;
    const bool is_next = !words.empty() && (more.empty() || !more[0].text.starts_with("--"));
    if (is_next || command.reads_pipe || command.in_background)
      refuse(fmt::format("there is more than one command: {}", in_quotes(command.excerpt)));
    for (const auto* part : {&command.assignments, &command.words})
      for (const ShellWord& word : *part) {
        // Patterns without a folder match no file: the shell leaves the pattern M-M*- of layers unchanged.
        const std::string& raw = word.raw;
        const bool is_pattern = raw.find('/') != raw.npos && raw.find_first_of("*?[") != raw.npos;
        if (!word.value && (raw.find_first_of("$`(") != raw.npos || raw.starts_with('~') || is_pattern))
          refuse(fmt::format("only a shell can expand {}", in_quotes(raw)));
        words.push_back(word.text);
      }
  }
  return words;
}

std::string read_shell_file(const std::string& path, const char* flag) {
  const auto refuse = [&](const std::string& what, const char* fix) { throw ConfigError({what, flag, fix}); };
  std::string text;
  try {
    text = read_config(path);
  } catch (const ConfigError& e) {
    refuse(e.problems().front().what, flag == std::string_view(kRunScript)
                                          ? "give a file"
                                          : "give a file with shell text, or - for standard input");
  }
  if (text.starts_with("\xEF\xBB\xBF"))
    refuse(fmt::format("'{}' begins with a byte order mark, which bash treats as part of a word", path),
           "save it as UTF-8 without one, e.g. with dos2unix");
  if (text.find('\0') != text.npos || text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    refuse(fmt::format("'{}' is not text, or not in UTF-8", path), "give a file with shell text, not a program");
  return text;
}

}  // namespace braid
