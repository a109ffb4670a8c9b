#include "cluster/lines/text.h"
#include <csignal>
#include "base/error.h"
#include "base/process.h"

namespace braid {

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

double seconds_between(LogTime earlier, LogTime later) {
  constexpr double kYear = 366 * 86400.0;
  const double difference = later - earlier;
  return difference < -kYear / 2 ? difference + kYear : difference > kYear / 2 ? difference - kYear : difference;
}

std::optional<LogTime> take_time(std::string_view& text) {
  static constexpr int kDaysBefore[] = {0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335};
  // - stands for a slash too, _ for what may divide a date from a time; the last two are of glog and of c10.
  for (const std::string_view shape :
       {"YYYY-MM-DD_hh:mm:ss", "MM-DD-YYYY hh:mm:ss", "MM-DD hh:mm:ss", "MMDD hh:mm:ss", "MDD hh:mm:ss"}) {
    if (text.empty() || !is_digit(text[0])) return std::nullopt;
    std::array<int, 128> value{};  // by letter
    const auto fits = [&](char wanted, char c) {
      int& number = value[static_cast<std::size_t>(wanted)];
      if (is_letter(wanted)) number = 10 * number + c - '0';
      return is_letter(wanted) ? is_digit(c)
                               : c == wanted || (wanted == '-' && c == '/') || (wanted == '_' && is_one_of(" T", c));
    };
    if (text.size() < shape.size() || !std::equal(shape.begin(), shape.end(), text.begin(), fits)) continue;
    const int month = value['M'], day = value['D'];
    if (month < 1 || month > 12 || day < 1 || day > 31) return std::nullopt;
    const double seconds =
        86400.0 * (kDaysBefore[month - 1] + day - 1) + 3600 * value['h'] + 60 * value['m'] + value['s'];
    text.remove_prefix(shape.size());
    if (!take(text, ".") && !take(text, ",")) return seconds;
    const std::size_t before = text.size();
    const double fraction = static_cast<double>(take_number(text).value_or(0));
    return seconds + fraction / std::pow(10.0, before - text.size());
  }
  return std::nullopt;
}

std::string_view take_until(std::string_view& text, std::string_view divider) {
  const std::size_t end = std::min(text.find(divider), text.size());
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(std::min(end + divider.size(), text.size()));
  return taken;
}

std::string_view take_last_line(std::string_view& text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  const std::size_t begin = text.rfind('\n') + 1;  // npos + 1 is 0
  const std::string_view line = text.substr(begin);
  text = text.substr(0, begin);
  return line;
}

std::optional<std::int64_t> take_number(std::string_view& text) {
  const std::string_view digits = take_while(text, is_digit, 18);
  std::int64_t number = 0;
  for (const char digit : digits) number = 10 * number + digit - '0';
  return digits.empty() ? std::nullopt : std::optional(number);
}

std::optional<int> take_small_number(std::string_view& text) {
  std::string_view rest = text;
  const auto number = take_number(rest);
  if (!number || *number >= 1'000'000) return std::nullopt;
  text = rest;
  return static_cast<int>(*number);
}

namespace {

// Whether one alternative of "a|b" is accepted.
template <class Accepts>
bool any_alternative(std::string_view words, Accepts accepts) {
  for (;;) {
    const std::size_t end = std::min(words.find('|'), words.size());
    if (accepts(words.substr(0, end))) return true;
    if (end == words.size()) return false;
    words.remove_prefix(end + 1);
  }
}

}  // namespace

bool has(std::string_view text, std::string_view words) {
  return any_alternative(words, [&](std::string_view word) { return text.find(word) != npos; });
}

bool begins(std::string_view text, std::string_view words) {
  return any_alternative(words, [&](std::string_view word) { return text.starts_with(word); });
}

std::string in_small_letters(std::string_view text) {
  std::string low(text);
  std::ranges::transform(low, low.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return low;
}

std::optional<int> signal_of_code(int code) {
  if (code < 0) return -code;
  if (code > 128 && code < 160) return code - 128;
  return std::nullopt;
}

namespace {

bool take_rank_word(std::string_view& text) {
  const std::string low = in_small_letters(text.substr(0, 11));
  std::string_view rest = low;
  if (take(rest, "global") || take(rest, "world") || take(rest, "mpi"))
    if (!rest.empty() && is_one_of(" _-", rest[0])) rest.remove_prefix(1);
  if (!take(rest, "rank")) return false;
  text.remove_prefix(low.size() - rest.size());
  return true;
}

// "SIGKILL", or "Killed" where it is described. SIGABRT's number if the name is unknown.
std::optional<int> take_signal_name(std::string_view& text, bool is_described) {
  const std::string_view name = take_while(text, [&](char c) { return is_word(c) || (is_described && c == ' '); });
  for (int signal = 1; signal < 32; ++signal)
    if (const std::string both = describe_signal(signal);
        is_described ? both.ends_with(fmt::format(" ({})", trimmed(name))) : both.starts_with(std::string(name) + " "))
      return signal;
  return name.starts_with("SIG") ? std::optional(SIGABRT) : std::nullopt;
}

std::optional<int> take_signed_number(std::string_view& text) {
  const bool is_negative = take(text, "-");
  const auto number = take_small_number(text);
  return number && is_negative ? -*number : number;
}

// The elements that are runs of some characters: how few and how many of them.
struct Run {
  char kind;
  bool (*is_in)(char);
  std::size_t least, most;
};
constexpr Run kRuns[] = {
    {'n', is_digit, 1, 18},
    {'w', is_host, 1, npos},
    {'d', is_of_time, 1, npos},
    {'a', [](char c) { return is_letter(c) || c == '_'; }, 1, npos},
    {'_', [](char c) { return is_one_of(" \t", c); }, 0, 40},
    {'+', [](char c) { return is_one_of(" +-", c); }, 0, 40},
    {'~', [](char c) { return is_one_of(" :=\"'\t", c); }, 0, 40},
    {'=', [](char c) { return is_one_of(" :=_-#", c); }, 0, 2},
    {'L', [](char c) { return is_one_of("IWEF", c); }, 1, 1},
    {'^', [](char c) { return !is_letter(c); }, 0, npos},
    {'p', [](char c) { return is_host(c) || is_one_of("/~", c); }, 1, npos},
    {'D', [](char c) { return !is_digit(c); }, 1, 1},
};

const Run& run_of(char kind) {
  const auto run = std::ranges::find(kRuns, kind, &Run::kind);
  BRAID_CHECK(run != std::end(kRuns), "the pattern's element %{} is unknown", kind);
  return *run;
}

bool take_element(char kind, std::string_view& text, Caught& caught) {
  switch (kind) {
    case 'r': return (caught.rank = take_small_number(text)).has_value();
    case 'l': return (caught.local_rank = take_small_number(text)).has_value();
    case 's': return (caught.signal = take_small_number(text)).has_value();
    case 'S':
    case 'x': return (caught.signal = take_signal_name(text, kind == 'x')).has_value();
    case 'c': return (caught.code = take_signed_number(text)).has_value();
    case 'k': return take_rank_word(text);
    case 'R':
      caught.ranks = take_while(text, [](char c) { return is_digit(c) || is_one_of("-, ", c); });
      text = {trimmed(caught.ranks).end(), text.end()};
      return !(caught.ranks = trimmed(caught.ranks)).empty();
    case 'h': return !(caught.host = take_while(text, is_host)).empty();
    case 't':
      caught.time = take_time(text);
      take_while(text, [](char c) { return is_one_of(".,Z", c); });
      return caught.time.has_value();
    case '%': return take(text, "%");
    case '$': return text.empty();
    case ']': return text.empty() || is_one_of("]),>|}", text[0]) || text.starts_with(" of ");
  }
  if (kind == 'N') {
    const auto is_between = [](char c) { return is_one_of(" =:.'\"\t[(#/", c); };
    if (take_while(text, is_between, 60).empty() || !(caught.number = take_number(text))) return false;
    std::string_view rest = trimmed(text.substr(0, 24));
    caught.total = take(rest, "/") || take(rest, "of ") ? (rest = trimmed(rest), take_number(rest)) : std::nullopt;
    return true;
  }
  if (kind == 'z') {
    const std::string_view size = text;
    const bool has_number = !take_while(text, [](char c) { return is_digit(c) || c == '.'; }).empty();
    take(text, " ");
    const bool has_unit = !take_while(
                               text, [](char c) { return is_one_of("KMGTiB", c); }, 5)
                               .empty();
    caught.texts[0] = size.substr(0, size.size() - text.size());
    return has_number && has_unit;
  }
  const Run& run = run_of(kind);
  const std::string_view taken = take_while(text, run.is_in, run.most);
  if (kind == 'L' && !taken.empty()) caught.level = taken[0];
  return taken.size() >= run.least;
}

}  // namespace

bool is_pattern(std::string_view text) {
  for (std::size_t at = 0; (at = text.find('%', at)) != npos; at += 2)
    if (at + 1 < text.size() && !is_one_of("rlsSxckRht%$]Nz*123", text[at + 1]) &&
        std::ranges::find(kRuns, text[at + 1], &Run::kind) == std::end(kRuns))
      return false;
  return true;
}

std::optional<std::size_t> match_front(std::string_view pattern, std::string_view text, Caught& caught) {
  constexpr std::size_t kNear = 1000;
  caught = {};
  std::string_view rest = text;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char kind = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[++i] : '\0';
    if (kind == '*' || (kind >= '1' && kind <= '3')) {
      const std::string_view next = pattern.substr(i + 1, pattern.find('%', i + 1) - i - 1);
      const std::size_t at = next.empty() ? rest.size() : rest.substr(0, kNear).find(next);
      if (at == npos) return std::nullopt;
      if (kind != '*') caught.texts[static_cast<std::size_t>(kind - '1')] = rest.substr(0, at);
      rest.remove_prefix(at);
    } else if (kind != '\0') {
      if (!take_element(kind, rest, caught)) return std::nullopt;
    } else {
      if (rest.empty() || rest[0] != pattern[i]) return std::nullopt;
      rest.remove_prefix(1);
    }
  }
  return text.size() - rest.size();
}

std::optional<std::int64_t> number_after(std::string_view text, std::string_view key) {
  Caught caught;
  return match_inside(std::string(key) + "%N", text, caught) ? caught.number : std::nullopt;
}

bool match_inside(std::string_view pattern, std::string_view text, Caught& caught) {
  const std::string_view literal = pattern.substr(0, pattern.find('%'));
  for (std::size_t at = 0; (at = text.find(literal, at)) != npos; ++at)
    if (match_front(pattern, text.substr(at), caught)) return true;
  return false;
}

}  // namespace braid
