#include "cluster/megatron/lexer.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "base/error.h"

namespace braid {

std::vector<ShellCommand> ShellLexer::commands() {
  std::vector<ShellCommand> found;
  list(/*closing=*/'\0', &found);
  return found;
}

void ShellLexer::unbalanced(const char* what, std::size_t begin) const {
  const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(begin), '\n');
  const std::string_view rest = text_.substr(begin, 40);
  throw ConfigError({fmt::format("{} is not closed: {}", what, rest.substr(0, rest.find('\n'))),
                     fmt::format("line {} of the command", line),
                     "close it, or put a backslash in front of a literal character"});
}

ShellLexer::Nested::Nested(ShellLexer& lexer, std::size_t begin) : lexer_(lexer) {
  constexpr int kDeepest = 200;
  if (lexer.depth_ == kDeepest) lexer.unbalanced("a list nested too deeply", begin);
  ++lexer.depth_;
}

void ShellLexer::list(char closing, std::vector<ShellCommand>* out) {
  const std::size_t begin = at_;
  const Nested nested(*this, begin);
  Level level{.out = out};
  while (!at_end()) {
    if (closing && peek() == closing && level.open.empty()) {
      end_command(level);
      return;
    }
    element(level);
  }
  end_command(level);
  if (closing) unbalanced("a parenthesis", begin > 0 ? begin - 1 : 0);
  if (level.open.find('(') != std::string::npos) unbalanced("a parenthesis", text_.find('('));
}

void ShellLexer::element(Level& level) {
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

void ShellLexer::separator(Level& level) {
  const char c = text_[at_++], next = peek();
  if (c == '(') take_function_name(level);
  end_command(level);
  if ((c == '&' || c == '|') && next == c) {
    ++at_;
    level.joined = true;
  } else if (c == '|') {
    if (next == '&') ++at_;
    level.joined = level.after_pipe = true;
  } else if (c == '&') {
    send_to_background(level);
  } else if (c == ';') {  // of `case`: ;; ;& ;;&
    if (peek() == ';') ++at_;
    if (peek() == '&') ++at_;
  }
  if (c == '(') level.open += '(';
  if (c == '(' && !closes_at_once()) begin_body(level, '(', level.open.size());
  if (c != ')' || level.in_case()) return;  // also ends a pattern of `case`
  if (level.open.empty()) unbalanced("a command before ')'", at_ - 1);
  end_body(level, '(', level.open.size());
  level.open.pop_back();
}

bool ShellLexer::closes_at_once() const {
  const std::size_t next = text_.find_first_not_of(" \t", at_);
  return next != text_.npos && text_[next] == ')';
}

// NAME() { ...; } or NAME() (...)
void ShellLexer::take_function_name(Level& level) {
  const std::vector<ShellWord>& words = level.command.words;
  if (words.size() != 1 || !words[0].value || !closes_at_once()) return;
  level.defined = *words[0].value;
  level.command = {};
}

void ShellLexer::end_command(Level& level) {
  ShellCommand& command = level.command;
  const bool empty = command.words.empty() && command.assignments.empty();
  if (!empty && level.out) {
    command.reads_pipe = level.after_pipe;
    command.is_conditional = level.branches > 0 || (level.joined && !level.after_pipe);
    if (!level.bodies.empty()) command.function = level.bodies.back().name;
    level.defined.clear();  // NAME() without braces
    if (!level.joined) level.list_begin = level.out->size();
    level.out->push_back(command);
    level.after_pipe = level.joined = false;
  } else if (level.out && !level.out->empty()) {  // (a; b) >file
    auto& outputs = level.out->back().outputs;
    outputs.insert(outputs.end(), command.outputs.begin(), command.outputs.end());
  }
  command = {};
  level.skips_words = false;
}

void ShellLexer::send_to_background(Level& level) {
  if (!level.out) return;
  for (std::size_t i = level.list_begin; i < level.out->size(); ++i) (*level.out)[i].in_background = true;
}

bool ShellLexer::redirection(Level& level) {
  std::size_t begin = at_;
  while (begin < text_.size() && std::isdigit(static_cast<unsigned char>(text_[begin]))) ++begin;
  for (const char* token : {"&>>", "&>", "<<<", "<<-", "<<", "<&", "<>", ">>", ">&", ">|", "<", ">"}) {
    const std::string_view op = token;
    if (text_.substr(begin, op.size()) != op || (op[0] == '&' && begin != at_)) continue;
    if (op.size() == 1 && begin == at_ && begin + 1 < text_.size() && text_[begin + 1] == '(') return false;  // <(...)
    at_ = begin + op.size();
    pass_blanks();
    if (at_end() || (ends_word(peek()) && !next_is("<(") && !next_is(">("))) return true;
    const ShellWord target = word();
    if (op == "<<" || op == "<<-")
      level.here_documents.push_back({.delimiter = delimiter_of(target), .strips_tabs = op == "<<-"});
    const bool of_descriptor =
        op == ">&" && target.value && target.value->find_first_not_of("0123456789-") == target.value->npos;
    if (op.find('>') != op.npos && op != "<>" && !of_descriptor) level.command.outputs.push_back(target);
    return true;
  }
  return false;
}

std::string ShellLexer::delimiter_of(const ShellWord& word) const {
  return word.value ? *word.value : std::string(text_.substr(word.begin, word.end - word.begin));
}

void ShellLexer::pass_blanks() {
  while (is_blank(peek()) || next_is("\\\n")) at_ += peek() == '\\' ? 2 : 1;
}

void ShellLexer::pass_here_document(const HereDocument& document) {
  while (!at_end()) {
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    std::string_view line = text_.substr(at_, end - at_);
    at_ = std::min(end + 1, text_.size());
    if (document.strips_tabs) line.remove_prefix(std::min(line.find_first_not_of('\t'), line.size()));
    if (line == document.delimiter) return;
  }
}

void ShellLexer::take_word(Level& level) {
  ShellWord found = word();
  ShellCommand& command = level.command;
  if (level.names_function) {
    level.defined = found.value.value_or("");
    level.names_function = false;
    return;
  }
  if (level.skips_words) {
    level.skips_words = found.value != "in" || !level.in_case();
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

bool ShellLexer::reserved(Level& level, const std::string& word) {
  static const std::set<std::string> followed_by_command = {"if", "then", "elif", "else", "fi", "while", "until",
                                                            "do", "done", "{",    "}",    "!",  "time",  "esac"};
  static const std::set<std::string> followed_by_names = {"for", "select", "case"};
  static const std::set<std::string> begins_branch = {"if", "while", "until", "for", "select", "case"},
                                     ends_branch = {"fi", "done", "esac"};
  if (begins_branch.count(word)) ++level.branches;
  if (ends_branch.count(word) && level.branches > 0) --level.branches;
  if (word == "case") level.open += 'c';
  if (word == "esac" && level.in_case()) level.open.pop_back();
  if (word == "{") begin_body(level, '{', ++level.braces);
  if (word == "}" && level.braces > 0) end_body(level, '{', level.braces--);
  if (word == "function") level.names_function = true;
  if (followed_by_names.count(word)) level.skips_words = true;
  return followed_by_command.count(word) || followed_by_names.count(word) || word == "function";
}

void ShellLexer::begin_body(Level& level, char opening, std::size_t depth) {
  if (!level.defined.empty()) level.bodies.push_back({std::exchange(level.defined, ""), opening, depth});
}

void ShellLexer::end_body(Level& level, char opening, std::size_t depth) {
  if (level.bodies.empty()) return;
  const FunctionBody& body = level.bodies.back();
  if (body.opening == opening && body.depth == depth) level.bodies.pop_back();
}

bool ShellLexer::is_assignment(const ShellWord& word) const {
  const std::string_view raw = text_.substr(word.begin, word.end - word.begin);
  std::size_t equals = raw.find('=');
  if (equals == std::string_view::npos) return false;
  std::string_view name = raw.substr(0, equals);
  if (!name.empty() && name.back() == '+') name.remove_suffix(1);
  return is_identifier(name.substr(0, name.find('[')));
}

}  // namespace braid
