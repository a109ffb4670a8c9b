#include "cluster/doctor/events/line_kinds.h"

#include <algorithm>
#include <utility>

#include "cluster/doctor/events/traceback.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {

namespace {

// "Killed", "run.sh: line 3:  4242 Killed   python train.py"; zsh's words are small: "zsh: killed     python train.py".
// Of jobs in the background: "[1]+  Killed   python train.py", "[1]  + 4242 killed     python train.py".
bool is_end_by_shell(std::string_view text, std::string_view word, std::string_view small) {
  if (text == word || (has_word(text, "*** [") && text.ends_with("] " + std::string(word)))) return true;  // make
  if (std::string_view rest = text; take(rest, "zsh: ")) return rest.starts_with(small);
  if (std::string_view rest = text; take(rest, "[") && take_number(rest) && take(rest, "]")) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" +-0123456789"), rest.size()));
    return (take(rest, word) || take(rest, small)) && rest.starts_with("  ");
  }
  const std::size_t at = text.find(word), line = text.find(": line ");
  return at != std::string_view::npos && line < at && at > 1 && text[at - 1] == ' ' && is_digit(text[at - 2]);
}

}  // namespace

std::optional<Sign> sign_of_end_by_shell(std::string_view text) {
  if (is_end_by_shell(text, "Hangup", "hangup")) return Sign::Hangup;
  if (is_end_by_shell(text, "Terminated", "terminated")) return Sign::TerminatedFromOutside;
  if (is_end_by_shell(text, "Killed", "killed")) return Sign::KilledByShell;
  return std::nullopt;
}

std::optional<int> rank_before_list(std::string_view text) {
  std::size_t end = text.find(": [");
  if (end == std::string_view::npos) return std::nullopt;
  if (end > 0 && text[end - 1] == '!') --end;
  std::size_t begin = end;
  while (begin > 0 && end - begin < 6 && is_digit(text[begin - 1])) --begin;
  std::string_view digits = text.substr(begin, end - begin);
  const auto rank = take_number(digits);
  return rank ? std::optional(static_cast<int>(*rank)) : std::nullopt;
}

bool is_list_of_absent(std::string_view text) {
  return (text.starts_with("/job:") && text.find(' ') == std::string_view::npos) || text.ends_with("]") ||
         text.ends_with("].") || rank_before_list(text);
}

// "run.sh: line 3: DATA: unbound variable". A script's name has no blanks, and may have folders before it.
bool is_of_a_shell(std::string_view text) {
  for (const char* shell : {"bash: ", "-bash: ", "/bin/bash: ", "sh: ", "/bin/sh: "})
    for (const char* program :
         {"python", "torchrun", "deepspeed", "accelerate", "mpirun", "mpiexec", "activate", "./", ".sh"})
      if (text.starts_with(shell) && has_word(text, program))
        return true;  // others are looked for in vain all the time
  const std::size_t at = text.find(": line ");
  if (at == std::string_view::npos || text.substr(0, at).find(' ') != std::string_view::npos) return false;
  text.remove_prefix(at);
  take(text, ": line ");
  if (!take_number(text) || !take(text, ": ")) return false;
  text = trimmed(text);
  return !text.empty() && !is_digit(text[0]);  // that is a process: "4242 Killed   python train.py"
}

std::optional<Sign> sign_of_refusal(std::string_view text) {
  if (!text.starts_with("sbatch: error: ") && !text.starts_with("salloc: error: ")) return std::nullopt;
  for (const auto& [word, sign] : {std::pair{"ccount", Sign::BadAccount},
                                   {"QOS", Sign::BadAccount},
                                   {"ssociation", Sign::BadAccount},
                                   {"llocation balance", Sign::BadAccount},
                                   {"not permitted", Sign::BadAccount},
                                   {"not authorized", Sign::BadAccount},
                                   {"artition", Sign::BadPartition},
                                   {"gres", Sign::GpuSpecMissing},
                                   {"GRES", Sign::GpuSpecMissing},
                                   {"GPU", Sign::GpuSpecMissing},
                                   {"gpu", Sign::GpuSpecMissing}})
    if (has_word(text, word)) return sign;
  return std::nullopt;
}

// As a format that is in use: arguments that are off say None or False.
bool mentions_fp8(std::string_view text) {
  for (const char* word : {"fp8", "FP8", "float8"})
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string_view::npos;) {
      const std::size_t begin = text.rfind('\n', at) + 1, end = std::min(text.find('\n', at), text.size());
      const std::string_view line = text.substr(begin, end - begin);
      if (!has_word(line, "None") && !has_word(line, "False")) return true;
      at = end;  // a line is looked at once, however often it says the word
    }
  return false;
}

// A warning names a kind of error, and goes on.
bool is_warning(std::string_view text) {
  return has_word(text, "Warning: ") || has_word(text, "WARNING") || has_word(text, "[W") ||
         has_word(text, "warnings.warn");
}

bool reports_dead_loader(std::string_view text) { return has_word(text, "DataLoader worker (pid"); }

bool says_not_finite(std::string_view exception) {
  const auto has_whole_word = [&](std::string_view word) {
    for (std::size_t at = 0; (at = exception.find(word, at)) != std::string_view::npos; ++at) {
      const std::size_t end = at + word.size();
      const bool is_name = end < exception.size() && exception[end] == '-';  // "check-for-nan-in-loss"
      if ((at == 0 || !is_letter(exception[at - 1])) && (end == exception.size() || !is_letter(exception[end])) &&
          !is_name)
        return true;
    }
    return false;
  };
  bool is_not_finite =
      has_word(exception, "on-finite") || has_word(exception, "not finite") || has_word(exception, "diverged");
  for (const char* word : {"nan", "NaN", "NaNs", "Nan", "NAN", "inf", "Inf", "infinite"})
    is_not_finite = is_not_finite || has_whole_word(word);
  const bool is_told =
      has_one_of(exception, "got |found |Got nan|Got NaN|Got inf|is nan|is NaN|is inf|on-finite|not finite|diverged");
  const bool is_of_argument = has_one_of(exception, " must be | should be ") && !is_told;
  if (is_of_argument) return false;
  if (has_whole_word("nan") && has_whole_word("inf")) return true;
  for (const char* word : {"oss", "rad", "norm", "ctivation", "logits", "robabilit", "invalid values"})
    if (is_not_finite && has_word(exception, word)) return true;
  return false;
}

bool is_named_error(std::string_view type) {
  return (type.ends_with("Error") && type != "Error") || (type.ends_with("Exception") && type != "Exception");
}

std::string_view from_exception(std::string_view text) {
  constexpr std::size_t kLongestPrefix = 120;
  take(text, "ErrorMessage \"");                // SageMaker quotes it
  take(text, "Exception in thread \"main\" ");  // Java
  if (!exception_type(text).empty()) return text;
  for (std::size_t at = 0; (at = text.find(' ', at)) != std::string_view::npos && at < kLongestPrefix;) {
    const char before = at > 0 ? text[at - 1] : ' ';
    const std::string_view rest = text.substr(++at), type = exception_type(rest);
    if (is_named_error(type) && std::string_view(":|-])>").find(before) != std::string_view::npos &&
        !is_prose(text.substr(0, at)))
      return rest;
  }
  return text;
}

// A logger's prefix has names, numbers and punctuation, and hardly a plain word.
bool is_prose(std::string_view before) {
  constexpr std::ptrdiff_t kMostPlainWords = 2;
  if (std::count(before.begin(), before.end(), '"') % 2 == 1) return true;
  std::ptrdiff_t plain_words = 0;
  while (!(before = trimmed(before)).empty()) {
    const std::string_view word = before.substr(0, before.find(' '));
    before.remove_prefix(word.size());
    plain_words += std::all_of(word.begin(), word.end(), is_letter) &&
                   std::any_of(word.begin(), word.end(), [](char c) { return c >= 'a'; });
  }
  return plain_words > kMostPlainWords;
}

}  // namespace braid
