// The lexer behind simple_commands(); internal to this folder. lexer.cpp reads lists of commands, words.cpp the words
// in them: each needs the other, since a word may contain $(a list).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/megatron/command.h"

namespace braid {

// Collects a word's literal text around its expansions.
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

class ShellLexer {
 public:
  explicit ShellLexer(std::string_view text) : text_(text) {}

  std::vector<ShellCommand> commands();

 private:
  struct HereDocument {
    std::string delimiter;
    bool strips_tabs;
  };
  struct FunctionBody {
    std::string name;
    char opening;       // { or (
    std::size_t depth;  // among the open ones of its kind
  };
  // One nesting level: the whole text, or the text between $( and ).
  struct Level {
    std::vector<ShellCommand>* out;  // null: skip the commands
    ShellCommand command{};
    bool skips_words = false;            // of `for x in a b`, `case x in`
    std::string open{};                  // open constructs: '(' for a parenthesis, 'c' for a case
    bool names_function = false;         // the next word is a function's name
    std::string defined{};               // the function whose body is next
    std::vector<FunctionBody> bodies{};  // around the command
    std::size_t braces = 0;              // open ones
    std::vector<HereDocument> here_documents{};
    bool after_pipe = false, joined = false;  // the next command follows |; it follows |, && or ||
    int branches = 0;                         // if, while, for and case constructs around the command
    std::size_t list_begin = 0;               // index of the first command joined with the last one
    bool in_case() const { return open.ends_with('c'); }
  };

  struct Unbroken {
    std::size_t begin = 0, end = 0;
    std::size_t last_bracket = 0, last_comma_or_dot = 0;  // 0: none
  };

  bool at_end() const { return at_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool next_is(std::string_view token) const { return text_.substr(at_, token.size()) == token; }

  // Limits the nesting depth, so that hostile text cannot overflow the stack.
  class Nested {
   public:
    Nested(ShellLexer& lexer, std::size_t begin);
    ~Nested() { --lexer_.depth_; }

   private:
    ShellLexer& lexer_;
  };

  // lists of commands
  [[noreturn]] void unbalanced(const char* what, std::size_t begin) const;
  void list(char closing, std::vector<ShellCommand>* out);
  void element(Level& level);
  void separator(Level& level);
  static void begin_body(Level& level, char opening, std::size_t depth);
  static void end_body(Level& level, char opening, std::size_t depth);
  void take_function_name(Level& level);
  bool closes_at_once() const;  // the next character but blanks is )
  void end_command(Level& level);
  static void send_to_background(Level& level);
  // [n]>file, <<EOF, &>file, <<<word ... Consumes the target.
  bool redirection(Level& level);
  // Removes quotes; a delimiter is not expanded.
  std::string delimiter_of(const ShellWord& word) const;
  void pass_blanks();
  void pass_here_document(const HereDocument& document);
  void take_word(Level& level);
  static bool reserved(Level& level, const std::string& word);
  bool is_assignment(const ShellWord& word) const;

  // words
  ShellWord word();
  // The parentheses of name=(...) and <(...).
  bool opens_within_word(std::size_t begin) const;
  void word_part(std::size_t begin, WordValue& value);
  // Patterns, braces and the home folder (~). A lone [ or { is an ordinary word.
  bool is_expanded(char c, std::size_t begin);
  // The range from here to the next character that would end a word outside of quotes. Computed once for all brackets
  // in it, since a megabyte of text may be one word.
  const Unbroken& unbroken();
  std::string_view single_quoted();
  void double_quoted(WordValue& value);
  void dollar_or_backtick(WordValue& value, bool in_quotes);
  void pass_backticks();
  // Skips a quote or an expansion, or else one character.
  void pass_one();
  void pass_braces();
  void pass_balanced();
  // $'...'
  void ansi_quoted(WordValue& value);
  std::string ansi_escape();
  unsigned long number(int base, int digits);

  const std::string_view text_;
  std::size_t at_ = 0;
  Unbroken unbroken_;
  int depth_ = 0;  // nesting of lists and expansions
};

// Character classes of bash.
bool is_name_start(char c);
bool is_name_part(char c);
bool is_blank(char c);
bool ends_word(char c);

}  // namespace braid
