#include "cli/changed_variables.h"

#include <algorithm>
#include <cctype>

#include "base/strings.h"

namespace braid {
namespace {

bool is_name_letter(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); }

// The identifier that the text begins with.
std::string_view name_at(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && is_name_letter(text[end])) ++end;
  const std::string_view name = text.substr(0, end);
  return is_identifier(name) ? name : std::string_view();
}

class ChangedVariables {
 public:
  ChangedVariables(std::string_view text, const std::vector<ShellCommand>& commands) : text_(text) {
    for (const ShellCommand& command : commands) take(command);
    take_loops();
    take_arithmetic();
    if (has_references_) changed_.insert(assigned_.begin(), assigned_.end());
  }

  std::set<std::string> changed() && { return std::move(changed_); }

 private:
  std::string_view raw(const ShellWord& word) const { return text_.substr(word.begin, word.end - word.begin); }

  void add(std::string_view name) {
    if (!name.empty()) changed_.emplace(name);
  }

  void take(const ShellCommand& command) {
    for (const ShellWord& assignment : command.assignments) {
      const std::string_view name = name_at(raw(assignment));
      assigned_.emplace(name);
      if (raw(assignment).substr(name.size()).starts_with('[')) add(name);
    }
    if (command.words.empty()) return;
    const std::string program = command.words[0].value.value_or("");
    for (std::size_t i = 1; i < command.words.size(); ++i) {
      const std::string_view word = raw(command.words[i]);
      if (contains({"let", "read", "mapfile", "readarray", "unset", "getopts"}, program))
        add(name_at(word.substr(std::min(word.find_first_not_of("\"'"), word.size()))));
      if (program == "printf" && raw(command.words[i - 1]) == "-v") add(name_at(word));
      if (contains({"declare", "typeset", "local"}, program)) {
        assigned_.emplace(name_at(word));
        has_references_ |= word.starts_with('-') && word.find('n') != word.npos;
      }
      if (program == "eval") take_assignments(word);
    }
  }

  // for NAME in ..., select NAME in ...
  void take_loops() {
    for (const std::string_view keyword : {"for", "select"})
      for (std::size_t at = text_.find(keyword); at != text_.npos; at = text_.find(keyword, at + 1)) {
        std::size_t name = at + keyword.size();
        while (name < text_.size() && (text_[name] == ' ' || text_[name] == '\t')) ++name;
        const bool is_word = at == 0 || !is_name_letter(text_[at - 1]);
        if (is_word && name > at + keyword.size()) add(name_at(text_.substr(name)));
      }
  }

  // ((NAME += 2)), $((NAME++))
  void take_arithmetic() {
    for (std::size_t at = text_.find("(("); at != text_.npos; at = text_.find("((", at + 2))
      take_assignments(text_.substr(at, std::min(text_.find("))", at), text_.size()) - at));
  }

  // The names in front of an = (but not ==), +=, ++ and the like.
  void take_assignments(std::string_view text) {
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (at > 0 && is_name_letter(text[at - 1])) continue;
      const std::string_view name = name_at(text.substr(at));
      if (name.empty()) continue;
      std::string_view rest = text.substr(at + name.size());
      rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
      const std::size_t operators = std::min(rest.find_first_not_of("+-*/%&|^<>="), rest.size());
      const std::string_view symbol = rest.substr(0, operators);
      const bool compares = contains({"==", "<=", ">="}, symbol);
      const bool before = at >= 2 && contains({"++", "--"}, text.substr(at - 2, 2));
      if (before || symbol == "++" || symbol == "--" || (symbol.find('=') != symbol.npos && !compares)) add(name);
    }
  }

  const std::string_view text_;
  std::set<std::string> changed_, assigned_;
  bool has_references_ = false;  // declare -n: a name for another variable
};

}  // namespace

std::set<std::string> variables_changed_otherwise(std::string_view text, const std::vector<ShellCommand>& commands) {
  return ChangedVariables(text, commands).changed();
}

}  // namespace braid
