#include "cluster/doctor/messages.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/process.h"
#include "base/strings.h"
#include "cluster/doctor/rules.h"
#include "cluster/doctor/text.h"

namespace braid {

namespace {

// "Killed", "run.sh: line 3:  4242 Killed   python train.py"; zsh's words are small: "zsh: killed     python train.py".
// A shell reports jobs in the background so: "[1]+  Killed   python train.py", "[1]  + 4242 killed     python
// train.py".
bool is_end_by_shell(std::string_view text, std::string_view word, std::string_view small) {
  if (text == word || (has_word(text, "*** [") && text.ends_with("] " + std::string(word)))) return true;  // make
  if (std::string_view rest = text; take(rest, "zsh: ")) return rest.starts_with(small);
  if (std::string_view rest = text; take(rest, "[") && take_number(rest) && take(rest, "]")) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" +-0123456789"), rest.size()));
    return (take(rest, word) || take(rest, small)) && rest.starts_with("  ");
  }
  const std::size_t at = text.find(word), line = text.find(": line ");
  return at != npos && line < at && at > 1 && text[at - 1] == ' ' && is_digit(text[at - 2]);
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
  if (end == npos) return std::nullopt;
  if (end > 0 && text[end - 1] == '!') --end;
  std::size_t begin = end;
  while (begin > 0 && end - begin < 6 && is_digit(text[begin - 1])) --begin;
  std::string_view digits = text.substr(begin, end - begin);
  const auto rank = take_number(digits);
  return rank ? std::optional(static_cast<int>(*rank)) : std::nullopt;
}

bool is_list_of_absent(std::string_view text) {
  return (text.starts_with("/job:") && text.find(' ') == npos) || text.ends_with("]") || text.ends_with("].") ||
         rank_before_list(text);
}

// "run.sh: line 3: DATA: unbound variable". A script's name has no blanks, and may have folders before it.
bool is_of_a_shell(std::string_view text) {
  if (starts_with_one_of(text, "bash: |-bash: |/bin/bash: |sh: |/bin/sh: ") && says(text, "programs"))
    return true;  // other programs are looked for in vain all the time
  const std::size_t at = text.find(": line ");
  if (at == npos || text.substr(0, at).find(' ') != npos) return false;
  text.remove_prefix(at);
  take(text, ": line ");
  if (!take_number(text) || !take(text, ": ")) return false;
  text = trimmed(text);
  return !text.empty() && !is_digit(text[0]);  // that is a process: "4242 Killed   python train.py"
}

std::optional<Sign> sign_of_refusal(std::string_view text) {
  if (!text.starts_with("sbatch: error: ") && !text.starts_with("salloc: error: ")) return std::nullopt;
  return sign_by_words("refusals", text);
}

// Whether fp8 is in use: arguments that are off are None or False.
bool mentions_fp8(std::string_view text) {
  for (const char* word : {"fp8", "FP8", "float8"})
    for (std::size_t at = 0; (at = text.find(word, at)) != npos;) {
      const std::size_t begin = text.rfind('\n', at) + 1, end = std::min(text.find('\n', at), text.size());
      const std::string_view line = text.substr(begin, end - begin);
      if (!has_word(line, "None") && !has_word(line, "False")) return true;
      at = end;  // a line is looked at once, however often it says the word
    }
  return false;
}

// A warning names a kind of error, and goes on.
bool is_warning(std::string_view text) { return has_one_of(text, "Warning: |WARNING|[W|warnings.warn"); }

bool reports_dead_loader(std::string_view text) { return has_word(text, "DataLoader worker (pid"); }

bool says_not_finite(std::string_view exception) {
  const auto has_whole_word = [&](std::string_view word) {
    for (std::size_t at = 0; (at = exception.find(word, at)) != npos; ++at) {
      const std::size_t end = at + word.size();
      const bool is_name = end < exception.size() && exception[end] == '-';  // "check-for-nan-in-loss"
      if ((at == 0 || !is_letter(exception[at - 1])) && (end == exception.size() || !is_letter(exception[end])) &&
          !is_name)
        return true;
    }
    return false;
  };
  bool is_not_finite = has_one_of(exception, "on-finite|not finite|diverged");
  for (const char* word : {"nan", "NaN", "NaNs", "Nan", "NAN", "inf", "Inf", "infinite"})
    is_not_finite = is_not_finite || has_whole_word(word);
  const bool is_told =
      has_one_of(exception, "got |found |Got nan|Got NaN|Got inf|is nan|is NaN|is inf|on-finite|not finite|diverged");
  const bool is_of_argument = has_one_of(exception, " must be | should be ") && !is_told;
  if (is_of_argument) return false;
  if (has_whole_word("nan") && has_whole_word("inf")) return true;
  return is_not_finite && has_one_of(exception, "oss|rad|norm|ctivation|logits|robabilit|invalid values");
}

std::string_view exception_type(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && is_name(text[end])) ++end;
  const std::string_view type = text.substr(0, end);
  if (end < text.size() && text[end] == '(' && type.ends_with("RayTaskError"))  // of another exception: "(ValueError)"
    end = std::min(text.find(')', end), text.size() - 1) + 1;
  if (end == 0 || (end < text.size() && text[end] != ':')) return {};
  if (end + 1 < text.size() && text[end + 1] != ' ') return {};
  const std::string_view name = type.substr(type.rfind('.') + 1);
  if (name.size() < 4 || type[0] == '.' || is_digit(type[0])) return {};
  const bool capital = (name[0] >= 'A' && name[0] <= 'Z') || name[0] == '_';
  const bool shouts = std::none_of(name.begin(), name.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  return capital && !shouts ? type : std::string_view();
}

bool is_named_error(std::string_view type) {
  return (type.ends_with("Error") && type != "Error") || (type.ends_with("Exception") && type != "Exception");
}

std::string_view from_exception(std::string_view text) {
  constexpr std::size_t kLongestPrefix = 120;
  take(text, "ErrorMessage \"");                // SageMaker quotes it
  take(text, "Exception in thread \"main\" ");  // Java
  if (!exception_type(text).empty()) return text;
  for (std::size_t at = 0; (at = text.find(' ', at)) != npos && at < kLongestPrefix;) {
    const char before = at > 0 ? text[at - 1] : ' ';
    const std::string_view rest = text.substr(++at), type = exception_type(rest);
    if (is_named_error(type) && std::string_view(":|-])>").find(before) != npos && !is_prose(text.substr(0, at)))
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

namespace {

// Classifies lines that mention an error; many only quote one. Only the error itself says "Tried to allocate".
bool is_mention(Sign sign, std::string_view body) {
  if ((sign != Sign::GpuOom && sign != Sign::MissingImport) || body.starts_with("terminate called")) return false;
  if (has_one_of(body, "ErrorMessage \"|\"error\":|\"exception\":|cudaMalloc: "))
    return false;  // SageMaker, JSON, Kaldi
  std::size_t at = body.size();
  for (const Rule& rule : rules().lines)
    if (rule.sign == sign) at = std::min(at, body.find(rule.anchor));
  const bool is_code = body.substr(at, 12).find_first_of("abcdefghijklmnopqrstuvwxyz ") == npos;
  if (is_code || has_word(body, "Error while finding module")) return false;
  const std::string_view before = body.substr(0, at);
  const bool is_quoted = std::count(before.begin(), before.end(), '"') % 2 == 1;
  if (has_word(body, "Tried to allocate")) return is_quoted;
  const std::string_view after = behind(body, "out of memory").value_or("");
  const bool goes_on = after.size() > 1 && after[0] == ' ' && is_letter(after[1]);  // "... is not the reason"
  return is_prose(before) || (goes_on && exception_type(trimmed(body)).empty());
}

// Whether the line is a printed script, by `set -x` or as a whole.
bool is_source_of_shell(std::string_view body) { return starts_with_one_of(body, "+ |++ |trap |echo |# |#SBATCH"); }

// Python's loggers write the level as a word: "INFO:httpx:", "2026-11-15 10:00:00 - INFO - ", "[INFO]",
// "| INFO |", "2026-11-15 10:00:00 INFO ".
bool has_level_of_information(const LineMarks& marks) {
  constexpr std::size_t kLongestPrefix = 100;
  const std::string_view prefix = trimmed(marks.body).substr(0, kLongestPrefix);
  if (prefix.starts_with("INFO:") || (marks.time && prefix.starts_with("INFO "))) return true;
  for (const char* level : {" - INFO - ", "[INFO]", "| INFO |", "| INFO     |"})
    if (const std::size_t at = prefix.find(level); at != npos) return !is_prose(prefix.substr(0, at));
  return false;
}

}  // namespace

bool is_information(const LineMarks& marks) {
  return marks.level == 'I' || marks.level == 'W' || has_level_of_information(marks);
}

bool is_noise(Sign sign, const LineMarks& marks) {
  const std::string_view body = marks.body;
  if (body.find("frame #") < 4 || is_source_of_shell(body)) return true;
  if (sign == Sign::Stopped || role_of(sign) == Role::Outside || has_word(body, "vict") || reports_dead_loader(body))
    return false;
  if (is_information(marks) && sign != Sign::NanLoss && sign != Sign::NativeCrash &&
      !has_word(body, "*** SIG"))  // Paddle tells of signals so
    return true;
  if (row_for("noise", sign, body)) return true;
  if (sign == Sign::NanLoss && has_one_of(body, "stopping|aborting|exiting|terminating|was stopped|stop training"))
    return false;
  return is_warning(body.substr(0, 200)) || says(body, "goes-on") ||
         (marks.level != 'E' && marks.level != 'F' && is_mention(sign, body));
}

namespace {

// Long messages end with guesses at the reason.
std::string_view without_guesses(std::string_view message) {
  for (const std::string& guess : split(words_of("guesses"), '|')) message = message.substr(0, message.find(guess));
  return message;
}

// A message may recommend pages of documentation; nothing was downloaded from there.
std::string without_docs(std::string text) {
  constexpr std::string_view kDocs = "huggingface.co/docs";
  for (std::size_t at = 0; (at = text.find(kDocs, at)) != std::string::npos;) text[at] = ' ';
  return text;
}

// "KeyError: 'nccl_timeout'" contains a name, not a sentence.
bool is_missing_key(std::string_view type, std::string_view message) {
  return type.ends_with("KeyError") &&
         !has_word(trimmed(message.substr(std::min<std::size_t>(1, message.size()))), " ");
}

// The words of such an exception are names in the program.
bool is_slip_of_the_program(std::string_view type) {
  return has_one_of(type, "AttributeError|TypeError|NameError|UnboundLocalError|SyntaxError");
}

std::optional<Sign> sign_of_type(std::string_view type) {
  for (const Rule& rule : rows_of("exception types"))
    if (starts_with_one_of(type, rule.anchor)) return rule.sign;
  return std::nullopt;
}

}  // namespace

std::optional<Sign> sign_of_words(std::string_view message) {
  const std::string low = without_docs(in_small_letters(without_guesses(message)));
  return sign_by_words("exception words", low);
}

Sign sign_of_exception(std::string_view exception) {
  if (has_word(exception, "failed to pass monitoredBarrier")) return Sign::CollectiveTimeout;
  const bool may_crash = has_word(exception, "killed by signal");
  for (const Rule& rule : rules().lines) {
    const Role role = role_of(rule.sign);
    if (role == Role::Context || role == Role::Launcher || (rule.sign == Sign::NativeCrash && !may_crash)) continue;
    if (has_word(exception, rule.anchor) && fits(rule, exception)) return rule.sign;
  }
  return sign_of_unusual(exception);
}

Sign sign_of_unusual(std::string_view exception) {
  const std::string_view type = exception_type(exception);
  const std::string_view message = exception.substr(type.size());
  if (is_slip_of_the_program(type)) return Sign::PythonError;
  if (is_missing_key(type, message))  // "KeyError: 'SLURM_PROCID'"
    return has_one_of(in_small_letters(message), "'slurm_|'ompi_|'pmi_") ? Sign::NotLaunched : Sign::PythonError;
  if (says_not_finite(exception)) return Sign::NanLoss;
  if (const auto sign = sign_of_type(type.empty() ? exception : type)) return *sign;  // "socket.timeout" is small
  return sign_of_words(message).value_or(Sign::PythonError);
}

bool is_quoted_from_elsewhere(std::string_view exception) {
  return has_word(exception, ": Caught ") &&
         has_one_of(exception, " in DataLoader worker process| in pin memory thread| in replica ");
}

namespace {

// What DataError says; the line does not name its type.
bool is_bad_data(std::string_view reason) {
  return has_one_of(reason, "DataError|outside the vocabulary") || reason.starts_with("sample ");
}

}  // namespace

bool is_loss_of_peer(std::string_view reason) {
  const auto sign = sign_in(reason);
  return (sign && role_of(*sign) == Role::Consequence) ||
         has_one_of(reason, "without finishing|no heartbeat|no sign of life");  // the last one in older versions
}

std::optional<int> exit_code_in(std::string_view reason) {
  if (take(reason, "exited with code ")) {
    const auto code = take_number(reason);
    return code ? std::optional(static_cast<int>(*code)) : std::nullopt;
  }
  take(reason, "killed by ");
  for (int signal = 1; signal < 32; ++signal)
    if (reason.starts_with(describe_signal(signal))) return 128 + signal;
  return std::nullopt;
}

Cause cause_in_reason(std::string_view reason) {
  if (reason == kHostCannotBeReached) return Cause::NodeFailure;
  if (is_bad_data(reason)) return Cause::DataRankCascade;
  if (const auto code = exit_code_in(reason); code && *code > 128)
    if (const Cause cause = cause_of_signal(*code - 128); cause != Cause::Unknown) return cause;
  if (reason.find("out of memory") != npos) return Cause::GpuOom;
  const auto sign = sign_in(reason);
  return sign && role_of(*sign) == Role::Cause && *sign != Sign::NativeCrash ? cause_of(*sign) : Cause::BraidFailure;
}

}  // namespace braid
