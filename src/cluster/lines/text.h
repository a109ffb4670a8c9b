// Parts of a text, and patterns of launchers' words and line prefixes, so that each is one row of a table.
#pragma once

namespace braid {

inline constexpr auto npos = std::string_view::npos;

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool is_word(char c) { return is_digit(c) || is_letter(c) || c == '_'; }
inline bool is_name(char c) { return is_word(c) || c == '.'; }
inline bool is_host(char c) { return is_name(c) || c == '-'; }
inline bool is_one_of(std::string_view chars, char c) {  // find() would call memchr() for a few characters
  for (const char other : chars)
    if (other == c) return true;
  return false;
}
inline bool is_of_time(char c) { return is_digit(c) || is_one_of(":.,-/TZ+", c); }

// The text without blanks and tabs around it.
std::string_view trimmed(std::string_view text);

// Whether the text contains one of "timed out|timeout", or begins with one. Every text contains one of an empty list.
bool has(std::string_view text, std::string_view words);
bool begins(std::string_view text, std::string_view words);

std::string in_small_letters(std::string_view text);

// Whether text begins with the word; if so, text is moved behind it.
inline bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

// The characters at the beginning of text that are wanted; text is moved behind them.
template <class Wanted>
std::string_view take_while(std::string_view& text, Wanted wanted, std::size_t most = npos) {
  std::size_t end = 0;
  while (end < text.size() && end < most && wanted(text[end])) ++end;
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end);
  return taken;
}

// The text up to the divider, or all of it; text is moved behind the divider.
std::string_view take_until(std::string_view& text, std::string_view divider);

// The text behind the first such word, if there is one.
inline std::optional<std::string_view> behind(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  return at == npos ? std::nullopt : std::optional(text.substr(at + word.size()));
}

// Seconds since the beginning of a year: glog and c10 print no year. Differences of over half a year are a new year.
// Every year has a 29 February, so an interval that contains the end of February may be a day too long.
using LogTime = double;
double seconds_between(LogTime earlier, LogTime later);

// A date and time at the beginning of `text`: "2026-11-15 09:40:29.62", with 'T' or '_' between, "2026/11/15 09:40:29",
// "11/15/2026 09:40:29", or glog's "1115 09:40:29"; text is moved behind it.
std::optional<LogTime> take_time(std::string_view& text);
inline std::optional<LogTime> time_at(std::string_view text) { return take_time(text); }

// The last line of the text, without its end; text is cut before it.
std::string_view take_last_line(std::string_view& text);

// The number at the beginning of text, without sign; text is moved behind it.
std::optional<std::int64_t> take_number(std::string_view& text);
std::optional<int> take_small_number(std::string_view& text);  // below a million, as ranks are

// The whole number that follows `key` and any of " =:.'\"" after it, e.g. "num_experts ..... 256", "--num-experts 256".
std::optional<std::int64_t> number_after(std::string_view text, std::string_view key);

// What a pattern caught; views into the text.
struct Caught {
  std::optional<int> rank, local_rank, code, signal;
  std::optional<std::int64_t> number, total;
  std::optional<LogTime> time;
  char level = 0;
  std::string_view host, ranks;
  std::array<std::string_view, 3> texts;
};

// Literal text, and
//   %r a rank, %l a rank of its node      %k "rank" in any case, maybe with "global", "world" or "mpi" before it
//   %c an exit code, maybe below 0        %s a signal's number, %S its name, %x as the system describes it: "Killed"
//   %h a host's name, %w any such word    %n a number, %_ blanks or none, %= what stands between "rank" and its number
//   %~ between a code and its number      %* anything near, up to what follows
//   %t a time, and what follows it        %d digits and signs of a time
//   %L a level: I, W, E or F              %a letters
//   %+ blanks, plus and minus             %% a percent sign
//   %^ no letters                         %p a path without blanks, %D no digit
//   %N what stands between a word and a number, a number, and maybe "/ 100" or "of 100", its total
//   %R a list of ranks: "2, 5-7"
//   %z a size, kept as the first text
//   %$ the end of the text                %] what may stand behind a rank
//   %1, %2, %3 like %*, kept as a text; at the end of the pattern all that is left
// is_pattern: whether every element is one of these.
bool is_pattern(std::string_view text);

// The length of what matches at the beginning of text; what was caught counts only if it matches.
std::optional<std::size_t> match_front(std::string_view pattern, std::string_view text, Caught& caught);

inline std::optional<std::size_t> match_front(std::string_view pattern, std::string_view text) {
  Caught caught;
  return match_front(pattern, text, caught);
}

// The same anywhere in the text. The pattern begins with a literal.
bool match_inside(std::string_view pattern, std::string_view text, Caught& caught);

// The signal in an exit code: 9 for 137 and for -9; empty if the program chose the code, as it did with 9.
std::optional<int> signal_of_code(int code);

}  // namespace braid
