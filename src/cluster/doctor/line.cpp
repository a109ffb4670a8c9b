#include "cluster/doctor/line.h"

#include "base/strings.h"

namespace braid {

std::optional<LogTime> time_inside(std::string_view text) {
  for (std::size_t at = 4; (at = text.find('-', at)) != npos; ++at)
    if (const auto time = time_at(text.substr(at - 4)); time && text.substr(at + 3).starts_with('-')) return time;
  return std::nullopt;
}

namespace {

bool may_begin(std::string_view pattern, char c) {
  if (pattern[0] != '%') return c == pattern[0];
  if (is_one_of("trn", pattern[1])) return is_digit(c);
  if (is_one_of("aw", pattern[1])) return is_host(c);
  if (pattern[1] == 'L') return is_one_of("IWEF", c);
  return pattern[1] != 'k' || is_one_of("gGmMrRwW", c);
}

// The prefixes that may begin with this character: they are tried on every line.
const std::vector<const Rule*>& prefixes_from(char first) {
  static const auto kByCharacter = [] {
    std::array<std::vector<const Rule*>, 256> all;
    for (std::size_t c = 0; c < all.size(); ++c)
      for (const Rule& row : rows_of("prefixes"))
        if (may_begin(row.anchor, static_cast<char>(c))) all[c].push_back(&row);
    return all;
  }();
  return kByCharacter[static_cast<unsigned char>(first)];
}

// "rank_3" and "job-rank3", but not "crank3".
std::optional<int> number_in_name(std::string_view name, std::string_view word) {
  const std::size_t at = name.rfind(word);
  if (at == npos || (at > 0 && is_letter(name[at - 1]))) return std::nullopt;
  std::string_view rest = name.substr(at + word.size());
  take_while(
      rest, [](char c) { return is_one_of("_-.=", c); }, 1);
  return take_small_number(rest);
}

}  // namespace

std::optional<int> rank_numbered_in(std::string_view prefix) {
  Caught caught;
  return matching_row("numbered prefixes", prefix, caught) ? caught.rank : std::nullopt;
}

std::optional<int> rank_named_in(std::string_view prefix) {
  for (std::size_t at = 0; at < prefix.size(); ++at) {
    const std::string_view before = prefix.substr(0, at), rest = prefix.substr(at);
    const char left = at > 0 ? before.back() : ' ';
    if (!may_begin("%k", rest[0]) || !is_one_of(" [(|:,<{/\t", left) || trimmed(before).ends_with("ocal")) continue;
    Caught caught;
    for (const Rule* row : prefixes_from(rest[0]))
      if (row->anchor.starts_with("%k") && match_front(row->anchor, rest, caught)) return caught.rank;
    const std::size_t open = before.find_last_of("[<{");
    const bool is_bracketed = left == '(' || (open != npos && before.find_first_of("]>}", open) == npos);
    if (const auto length = match_front("%k%=%r%]", rest, caught))
      if (is_bracketed || has(rest.substr(0, *length), "=|:")) return caught.rank;
  }
  return std::nullopt;
}

std::optional<int> rank_inside(std::string_view body) {
  Caught caught;
  const bool is_named = match_inside("[%k%=%r]", body, caught) || match_inside("[PG %* Rank %r]", body, caught);
  return is_named ? caught.rank : std::nullopt;
}

std::vector<int> unfold_ranks(std::string_view list, std::size_t limit) {
  std::vector<int> ranks;
  for (const std::string& part : split(list, ',')) {
    std::string_view rest = trimmed(part);
    const auto first = take_small_number(rest);
    const auto last = take(rest, "-") ? take_small_number(rest) : first;
    if (!first || !last || !rest.empty()) return {};
    for (int rank = *first; rank <= *last && ranks.size() < limit; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

std::optional<int> rank_of_path(std::string_view path) {
  const std::vector<std::string> parts = split("/" + std::string(path), '/');
  const std::string &name = parts.back(), &folder = parts[parts.size() - 2];
  const bool is_stream = begins(name, "std|error");
  for (const char* word : {"rank", "Rank", "task"}) {
    if (const auto rank = number_in_name(name, word)) return rank;
    if (const auto rank = number_in_name(folder, word); rank && is_stream) return rank;
  }
  return parse_int(is_stream ? folder : name.substr(0, name.find('.')));
}

namespace {

// Takes one prefix of the table off the front of the line. `first`: at most a time stands before it.
bool take_prefix(std::string_view& line, LineMarks& marks, bool first) {
  constexpr std::size_t kLongest = 120;
  const std::string_view text = line.substr(std::min(line.find_first_not_of(" \t"), line.size()));
  if (text.empty()) return false;
  for (const Rule* row : prefixes_from(text[0])) {
    Caught caught;
    const auto length = match_front(row->anchor, text.substr(0, kLongest), caught);
    if (!length || (!first && row->is("first"))) continue;
    if (row->is("none")) return false;
    if (row->is("names-rank")) caught.rank = rank_named_in(text.substr(0, *length));
    if (caught.rank) marks.rank = caught.rank, marks.labelled = row->is("label");
    if (caught.local_rank) marks.local_rank = caught.local_rank;
    if (caught.time) marks.time = caught.time;
    if (caught.level != 0) marks.level = caught.level;
    line = text.substr(*length);
    if (line.starts_with(": [") || line.starts_with(": (")) line.remove_prefix(2);  // other prefixes follow
    if (!row->is("time") && !row->anchor.ends_with(' ')) {
      take(line, ":");
      take(line, " ");
    }
    return true;
  }
  return false;
}

}  // namespace

LineMarks marks_of(std::string_view line) {
  LineMarks marks;
  bool first = true;  // a time may stand before the labels of launchers
  for (int layer = 0; layer < 6 && take_prefix(line, marks, first); ++layer)
    first = marks.time && !marks.own_rank() && marks.level == 0;
  marks.body = line;
  if (marks.time && line.size() > 4 && line.starts_with(": ") && line[3] == ' ') marks.level = line[2];  // TensorFlow
  if (marks.time && !marks.own_rank()) marks.rank = rank_named_in(line.substr(0, 80));
  return marks;
}

bool is_of_the_scheduler(std::string_view text) {
  return begins(text, "srun: |sbatch: |salloc: |slurmstepd|Submitted batch job|pyxis: |+ ");
}

std::string pattern_of_prefix(std::string_view sample) {
  std::string pattern;
  const auto is_time = [](std::string_view token) {  // and not a number, an address or "train.py:120"
    const auto count = [&](char c) { return std::ranges::count(token, c); };
    return !token.empty() && is_digit(token[0]) && (count(':') == 2 || count('-') == 2 || count('/') == 2);
  };
  for (std::string_view rest = sample; !rest.empty();) {
    std::string_view after = rest;
    if (is_time(take_while(after, is_of_time))) {
      pattern += "%d";
      rest = after;
    } else {
      pattern += rest[0] == '%' ? "%%" : rest.substr(0, 1);
      rest.remove_prefix(1);
    }
  }
  return pattern;
}

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
  const bool is_class = !name.empty() && name[0] >= 'A' && name[0] <= 'Z';
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

// Classifies lines that mention an error; many only quote one.
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
  const std::string_view type = exception_type(exception), message = exception.substr(type.size());
  // The words of such an exception are names in the program.
  if (has(type, "AttributeError|TypeError|NameError|UnboundLocalError|SyntaxError")) return Sign::PythonError;
  const bool is_name = !has(trimmed(message.substr(std::min<std::size_t>(1, message.size()))), " ");
  if (type.ends_with("KeyError") && is_name)  // "KeyError: 'SLURM_PROCID'", "KeyError: 'nccl_timeout'"
    return has(in_small_letters(message), "'slurm_|'ompi_|'pmi_") ? Sign::NotLaunched : Sign::PythonError;
  if (says_not_finite(exception)) return Sign::NanLoss;
  for (const Rule& rule : rows_of("exception types"))
    if (begins(type.empty() ? exception : type, rule.anchor)) return rule.sign;  // "socket.timeout" is small
  return sign_of_words(message).value_or(Sign::PythonError);
}

}  // namespace braid
