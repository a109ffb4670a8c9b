#include "cluster/doctor/line.h"
#include "base/strings.h"

namespace braid {

std::string host_in(std::string_view body) {
  Caught caught;
  return matching_row("hosts", body, caught) ? std::string(caught.host) : "";
}

// Arguments that are off are None or False.
bool mentions_fp8(std::string_view text) {
  while (!text.empty())
    if (const auto line = take_until(text, "\n"); has(line, "fp8|FP8|float8") && !has(line, "None|False")) return true;
  return false;
}

bool has_whole(std::string_view text, std::string_view words) {
  const auto is_inside = [&](std::size_t at) {
    return at < text.size() && (is_letter(text[at]) || is_one_of("-_", text[at]));
  };
  for (const std::string& word : split(words, '|'))
    for (std::size_t at = 0; (at = text.find(word, at)) != npos; ++at)
      if (!is_inside(at - 1) && !is_inside(at + word.size())) return true;  // at - 1 may be npos
  return false;
}

namespace {

// The loss or gradients are not finite.
bool says_not_finite(std::string_view exception) {
  if (has(exception, " must be | should be ") && !says(exception, "found-not-finite")) return false;  // an argument
  if (has_whole(exception, "nan") && has_whole(exception, "inf")) return true;
  return (says(exception, "not-finite") || has_whole(exception, words_of("nan"))) && says(exception, "losses");
}

}  // namespace

std::string_view exception_type(std::string_view text) {
  std::string_view rest = text;
  const std::string_view type = take_while(rest, is_name), name = type.substr(type.rfind('.') + 1);
  if (type.ends_with("RayTaskError") && rest.starts_with('('))  // of another exception: "(ValueError)"
    take_until(rest, ")");
  const bool is_whole = rest.empty() || rest == ":" || rest.starts_with(": ");
  // "socket.gaierror: [Errno -2] ...", "numpy.core._exceptions._ArrayMemoryError: ..."
  const bool is_small =
      type.size() > name.size() && (name.ends_with("rror") || name.ends_with("xception") || name.ends_with("timeout"));
  const bool is_class = is_small || (!name.empty() && name[0] >= 'A' && name[0] <= 'Z');
  const bool shouts = std::ranges::none_of(name, [](char c) { return c >= 'a' && c <= 'z'; });
  return is_whole && is_class && !shouts ? type : std::string_view();
}

bool is_named_error(std::string_view type) {
  return (type.ends_with("Error") && type != "Error") || (type.ends_with("Exception") && type != "Exception");
}

namespace {

// Whether what stands before an error's message in its line is prose, or an open quotation: then the line only mentions
// an error. A logger's prefix has names, numbers and punctuation, and hardly a plain word.
bool is_prose(std::string_view before) {
  constexpr int kMostPlainWords = 2;
  if (std::ranges::count(before, '"') % 2 == 1) return true;
  int plain_words = 0;
  while (!before.empty()) {
    const std::string_view word = take_until(before, " ");
    plain_words += std::ranges::all_of(word, is_letter) && std::ranges::any_of(word, [](char c) { return c >= 'a'; });
  }
  return plain_words > kMostPlainWords;
}

}  // namespace

std::string_view from_exception(std::string_view text) {
  constexpr std::size_t kLongestPrefix = 120;
  take(text, "ErrorMessage \"");                // SageMaker quotes it
  take(text, "Exception in thread \"main\" ");  // Java
  if (!exception_type(text).empty()) return text;
  for (std::size_t at = 0; (at = text.find(' ', at)) != npos && at < kLongestPrefix;) {
    const char before = at > 0 ? text[at - 1] : ' ';
    const std::string_view rest = text.substr(++at);
    if (is_named_error(exception_type(rest)) && is_one_of(":|-])>", before) && !is_prose(text.substr(0, at)))
      return rest;
  }
  return text;
}

namespace {

// Whether a line on GPU memory only mentions the error.
bool is_mention(Sign sign, std::string_view body) {
  if (sign != Sign::GpuOom || says(body, "own-errors")) return false;
  std::size_t at = body.size();
  for (const Rule& rule : rules().lines)
    if (rule.sign == sign) at = std::min(at, body.find(rule.anchor));
  const bool is_code = body.substr(at, 12).find_first_of("abcdefghijklmnopqrstuvwxyz ") == npos;
  const std::string_view after = behind(body, "out of memory").value_or("");
  const bool goes_on = after.size() > 1 && after[0] == ' ' && is_letter(after[1]);  // "... is not the reason"
  return !is_code && (is_prose(body.substr(0, at)) || (goes_on && !has(body, "Tried to allocate")));
}

}  // namespace

// Python's loggers write the level as a word: "INFO:httpx:", "2026-11-15 10:00:00 - INFO - ", "[INFO]",
// "| INFO |", "2026-11-15 10:00:00 INFO ".
bool is_information(const LineMarks& marks) {
  constexpr std::size_t kLongestPrefix = 100;
  const std::string_view prefix = trimmed(marks.body).substr(0, kLongestPrefix);
  if (marks.level == 'I' || marks.level == 'W' || begins(prefix, "INFO:|INFO ")) return true;
  for (const char* level : {" - INFO - ", "[INFO]", "| INFO "})
    if (const std::size_t at = prefix.find(level); at != npos) return !is_prose(prefix.substr(0, at));
  return false;
}

bool is_noise(Sign sign, const LineMarks& marks) {
  const std::string_view body = marks.body;
  if (begins(body, "+ |++ |trap |echo |# |#SBATCH|frame #")) return true;  // a shell's source; a frame of C++
  if (sign == Sign::Stopped || role_of(sign) == Role::Outside || has(body, "vict") || reports_dead_loader(body))
    return false;
  if (is_information(marks) && sign != Sign::NanLoss && sign != Sign::NativeCrash) return true;
  if (row_for("noise", body, sign)) return true;
  if (sign == Sign::NanLoss && says(body, "stops")) return false;
  return is_warning(body.substr(0, 200)) || says(body, "goes-on") ||
         (marks.level != 'E' && marks.level != 'F' && is_mention(sign, body));
}

std::optional<Sign> sign_of_words(std::string_view message) {
  for (const std::string& guess : split(words_of("guesses"), '|')) message = message.substr(0, message.find(guess));
  return sign_of(row_for("exception words", in_small_letters(message)));
}

Sign sign_of_exception(std::string_view exception) {
  const bool may_crash = has(exception, "killed by signal");
  const auto sign = sign_in(
      exception, [&](Sign kind) { return role_of(kind) < Role::Launcher && (kind != Sign::NativeCrash || may_crash); });
  return sign ? *sign : sign_of_unusual(exception);
}

Sign sign_of_unusual(std::string_view exception) {
  const std::string_view type = exception_type(exception), message = behind(exception, ": ").value_or("");
  for (const Rule& rule : rows_of("exception types"))
    if (has(type.empty() ? exception : type, rule.anchor) && rule.fits(message)) return rule.sign;
  return says_not_finite(exception) ? Sign::NanLoss : sign_of_words(message).value_or(Sign::PythonError);
}

}  // namespace braid
