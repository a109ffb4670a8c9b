#include "cluster/doctor/line.h"

#include <algorithm>
#include <array>
#include <bitset>

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

// A row of [prefixes], read once: it is tried on every line.
struct Prefix {
  std::string_view pattern;
  bool is_first, is_label, names_rank, is_time, is_none;
  std::bitset<256> second;  // the characters that may be the second one
};

Prefix prefix_of(const Rule& row) {
  Prefix prefix = {row.anchor, row.is("first"), row.is("label"), row.is("names-rank"), row.is("time"), row.is("none"),
                   {}};
  for (std::size_t c = 0; c < 256; ++c)
    prefix.second[c] = row.anchor[0] == '%' || may_begin(prefix.pattern.substr(1), static_cast<char>(c));
  return prefix;
}

// The prefixes that may begin with this character.
const std::vector<const Prefix*>& prefixes_from(char first) {
  static const auto kAll = [] {
    std::vector<Prefix> all;
    for (const Rule& row : rows_of("prefixes")) all.push_back(prefix_of(row));
    return all;
  }();
  static const auto kByCharacter = [] {
    std::array<std::vector<const Prefix*>, 256> all;
    for (std::size_t c = 0; c < all.size(); ++c)
      for (const Prefix& prefix : kAll)
        if (may_begin(prefix.pattern, static_cast<char>(c))) all[c].push_back(&prefix);
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
  for (const Rule& row : rows_of("numbered prefixes"))
    if (Caught caught; row.is("first") ? match_front(row.anchor, prefix, caught).has_value()
                                       : match_inside(row.anchor, prefix, caught))
      return caught.rank;
  return std::nullopt;
}

std::optional<int> rank_named_in(std::string_view prefix) {
  const std::string_view word = prefix.find("ANK") == npos ? "ank" : "ANK";
  for (std::size_t at = 0; (at = prefix.find(word, at + 1)) != npos;) {
    std::size_t begin = at - 1;
    for (const std::string_view before : {"global_", "world_", "mpi"})
      if (prefix.substr(0, begin).ends_with(before)) begin -= before.size();
    const std::string_view before = prefix.substr(0, begin), rest = prefix.substr(begin);
    const char left = begin > 0 ? before.back() : ' ';
    if (!is_one_of(" [(|:,<{/\t", left) || trimmed(before).ends_with("ocal") || trimmed(before).ends_with("ode"))
      continue;
    Caught caught;
    for (const Prefix* row : prefixes_from(rest[0]))
      if (row->pattern.starts_with("%k") && match_front(row->pattern, rest, caught)) return caught.rank;
    if (const auto length = match_front("%k%=%r", rest, caught)) {
      const std::string_view after = rest.substr(*length);
      const std::size_t open = before.find_last_of("[<{");
      const bool is_bracketed = left == '(' || (open != npos && before.find_first_of("]>}", open) == npos);
      const bool ends = after.empty() || after.starts_with(" of ") || is_one_of("]),>|}", after[0]);
      if (ends && (is_bracketed || has(rest.substr(0, *length), "=|:"))) return caught.rank;
    }
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
  for (const Prefix* prefix : prefixes_from(text[0])) {
    const Prefix& row = *prefix;
    if ((row.is_first && !first) || !row.second[static_cast<unsigned char>(text[text.size() > 1])]) continue;
    Caught caught;
    const auto length = match_front(row.pattern, text.substr(0, kLongest), caught);
    if (!length) continue;
    if (row.is_none) return false;
    if (row.names_rank) caught.rank = rank_named_in(text.substr(0, *length));
    if (caught.rank) marks.rank = caught.rank, marks.labelled = row.is_label;
    if (caught.local_rank) marks.local_rank = caught.local_rank;
    if (caught.time) marks.time = caught.time;
    if (caught.level != 0) marks.level = caught.level;
    line = text.substr(*length);
    if (line.starts_with(": [") || line.starts_with(": (")) line.remove_prefix(2);  // other prefixes follow
    if (!row.is_time && !row.pattern.ends_with(' ')) {
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
    first = first && layer == 0 && marks.time && !marks.own_rank() && marks.level == 0;
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
    const bool starts_word = rest.size() == sample.size() || !is_word(sample[sample.size() - rest.size() - 1]);
    std::string_view after = rest;
    if (starts_word && is_time(take_while(after, is_of_time))) {
      pattern += "%d";
      rest = after;
    } else {
      pattern += rest[0] == '%' ? "%%" : rest.substr(0, 1);
      rest.remove_prefix(1);
    }
  }
  return pattern;
}

std::optional<std::size_t> match_prefix(std::string_view pattern, std::string_view line) {
  Caught caught;
  if (const auto length = match_front(pattern, line, caught)) return length;
  const auto length = match_front(trimmed(pattern), line, caught);
  return length && trimmed(line.substr(*length)).empty() ? std::optional(line.size()) : std::nullopt;
}

std::string host_in(std::string_view body) {
  if (has(body, "DUE TO NODE FAILURE")) return "";  // the host it names is another one
  Caught caught;
  // The last one is of newer versions: "slurmstepd-n3: error: ...".
  for (const char* pattern :
       {"*** %* ON %h", "Node failure on %h", "connection failure to node %h", " failed on node %h"})
    if (match_inside(pattern, body, caught)) return std::string(caught.host);
  if (has(body, " NCCL ") && match_front("%_%h:%n:", body, caught)) return std::string(caught.host);  // and [device]
  if (match_inside("slurmstepd-%h", body, caught)) return std::string(caught.host);  // in newer versions
  if (match_front("srun: error: %h: ", body, caught) && caught.host != "Node" && caught.host != "Unable")
    return std::string(caught.host);
  return "";
}

namespace {

// "Killed", "run.sh: line 3:  4242 Killed   python train.py"; zsh's words are small: "zsh: killed     python train.py".
// A shell reports jobs in the background so: "[1]+  Killed   python train.py", "[1]  + 4242 killed     python
// train.py".
bool is_end_by_shell(std::string_view text, const std::string& word, const std::string& small) {
  if (text == word || (has(text, "*** [") && text.ends_with("] " + word))) return true;  // make
  if (take(text, "zsh: ")) return text.starts_with(small);
  if (take(text, "[")) {
    take_while(text, [](char c) { return !is_letter(c); });
    return begins(text, word + "  |" + small + "  ");
  }
  const std::size_t at = text.find(word), line = text.find(": line ");
  return at != npos && line < at && text[at - 1] == ' ' && is_digit(text[at - 2]);
}

}  // namespace

std::optional<Sign> sign_of_end_by_shell(std::string_view text) {
  if (is_end_by_shell(text, "Hangup", "hangup")) return Sign::Hangup;
  if (is_end_by_shell(text, "Terminated", "terminated")) return Sign::TerminatedFromOutside;
  if (is_end_by_shell(text, "Killed", "killed")) return Sign::KilledByShell;
  return std::nullopt;
}

std::optional<int> rank_before_list(std::string_view text) {
  const std::size_t end = text.find(": [");
  if (end == npos) return std::nullopt;
  text = text.substr(0, end);
  if (text.ends_with('!')) text.remove_suffix(1);
  text.remove_prefix(text.find_last_not_of("0123456789") + 1);  // npos + 1 is 0
  return take_small_number(text);
}

// "run.sh: line 3: DATA: unbound variable". A script's name has no blanks, and may have folders before it.
bool is_of_a_shell(std::string_view text) {
  if (begins(text, "bash: |-bash: |/bin/bash: |sh: |/bin/sh: ") && says(text, "programs"))
    return true;  // other programs are looked for in vain all the time
  Caught caught;
  const std::size_t at = text.find(": line ");
  if (at == npos || has(text.substr(0, at), " ") || !match_front(": line %n: %_%1", text.substr(at), caught))
    return false;
  return !caught.texts[0].empty() &&
         !is_digit(caught.texts[0][0]);  // that is a process: "4242 Killed   python train.py"
}

// Arguments that are off are None or False.
bool mentions_fp8(std::string_view text) {
  while (!text.empty())
    if (const auto line = take_until(text, "\n"); has(line, "fp8|FP8|float8") && !has(line, "None|False")) return true;
  return false;
}

namespace {

// The loss or gradients are not finite.
bool says_not_finite(std::string_view exception) {
  const auto has_whole_word = [&](std::string_view word) {
    for (std::size_t at = 0; (at = exception.find(word, at)) != npos; ++at) {
      const char after = exception.substr(at + word.size()).empty() ? ' ' : exception[at + word.size()];
      const bool is_inside = (at > 0 && is_letter(exception[at - 1])) || is_letter(after);
      if (!is_inside && after != '-') return true;  // "check-for-nan-in-loss"
    }
    return false;
  };
  constexpr const char* kWords[] = {"nan", "NaN", "NaNs", "Nan", "NAN", "inf", "Inf", "infinite"};
  const bool is_told =
      has(exception, "got |found |Got nan|Got NaN|Got inf|is nan|is NaN|is inf|on-finite|not finite|diverged");
  if (has(exception, " must be | should be ") && !is_told) return false;  // an argument
  if (has_whole_word("nan") && has_whole_word("inf")) return true;
  return (has(exception, "on-finite|not finite|diverged") || std::ranges::any_of(kWords, has_whole_word)) &&
         has(exception, "oss|rad|norm|ctivation|logits|robabilit|invalid values");
}

}  // namespace

std::string_view exception_type(std::string_view text) {
  std::string_view rest = text;
  const std::string_view type = take_while(rest, is_name), name = type.substr(type.rfind('.') + 1);
  if (type.ends_with("RayTaskError") && rest.starts_with('('))  // of another exception: "(ValueError)"
    rest.remove_prefix(std::min(rest.find(')'), rest.size() - 1) + 1);
  if ((!rest.empty() && rest != ":" && !rest.starts_with(": ")) || name.size() < 4 || type[0] == '.' ||
      is_digit(type[0]))
    return {};
  const bool is_capital = (name[0] >= 'A' && name[0] <= 'Z') || name[0] == '_';
  const bool shouts = std::ranges::none_of(name, [](char c) { return c >= 'a' && c <= 'z'; });
  return is_capital && !shouts ? type : std::string_view();
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

// Classifies lines that mention an error; many only quote one. Only the error itself says "Tried to allocate".
bool is_mention(Sign sign, std::string_view body) {
  if ((sign != Sign::GpuOom && sign != Sign::MissingImport) || body.starts_with("terminate called")) return false;
  if (has(body, "ErrorMessage \"|\"error\":|\"exception\":|cudaMalloc: ")) return false;  // SageMaker, JSON, Kaldi
  std::size_t at = body.size();
  for (const Rule& rule : rules().lines)
    if (rule.sign == sign) at = std::min(at, body.find(rule.anchor));
  const bool is_code = body.substr(at, 12).find_first_of("abcdefghijklmnopqrstuvwxyz ") == npos;
  if (is_code || has(body, "Error while finding module")) return false;
  const std::string_view before = body.substr(0, at);
  if (has(body, "Tried to allocate")) return std::ranges::count(before, '"') % 2 == 1;
  const std::string_view after = behind(body, "out of memory").value_or("");
  const bool goes_on = after.size() > 1 && after[0] == ' ' && is_letter(after[1]);  // "... is not the reason"
  return is_prose(before) || (goes_on && exception_type(trimmed(body)).empty());
}

}  // namespace

// Python's loggers write the level as a word: "INFO:httpx:", "2026-11-15 10:00:00 - INFO - ", "[INFO]",
// "| INFO |", "2026-11-15 10:00:00 INFO ".
bool is_information(const LineMarks& marks) {
  constexpr std::size_t kLongestPrefix = 100;
  const std::string_view prefix = trimmed(marks.body).substr(0, kLongestPrefix);
  if (marks.level == 'I' || marks.level == 'W' || prefix.starts_with("INFO:")) return true;
  if (marks.time && prefix.starts_with("INFO ")) return true;
  for (const char* level : {" - INFO - ", "[INFO]", "| INFO |", "| INFO     |"})
    if (const std::size_t at = prefix.find(level); at != npos) return !is_prose(prefix.substr(0, at));
  return false;
}

bool is_noise(Sign sign, const LineMarks& marks) {
  const std::string_view body = marks.body;
  if (body.find("frame #") < 4 || begins(body, "+ |++ |trap |echo |# |#SBATCH")) return true;  // a shell's source
  if (sign == Sign::Stopped || role_of(sign) == Role::Outside || has(body, "vict") || reports_dead_loader(body))
    return false;
  if (is_information(marks) && sign != Sign::NanLoss && sign != Sign::NativeCrash &&
      !has(body, "*** SIG"))  // Paddle tells of signals so
    return true;
  if (row_for("noise", body, sign)) return true;
  if (sign == Sign::NanLoss && has(body, "stopping|aborting|exiting|terminating|was stopped|stop training"))
    return false;
  return is_warning(body.substr(0, 200)) || says(body, "goes-on") ||
         (marks.level != 'E' && marks.level != 'F' && is_mention(sign, body));
}

std::optional<Sign> sign_of_words(std::string_view message) {
  for (const std::string& guess : split(words_of("guesses"), '|')) message = message.substr(0, message.find(guess));
  return sign_by_words("exception words", in_small_letters(message));
}

Sign sign_of_exception(std::string_view exception) {
  if (has(exception, "failed to pass monitoredBarrier")) return Sign::CollectiveTimeout;
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
