#include "base/strings.h"
#include "base/utf8.h"

namespace braid {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t substitution = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

// Removes the first part that begins and ends with these texts.
std::string without(std::string text, std::string_view begin, std::string_view end) {
  const std::size_t first = text.find(begin), last = first == text.npos ? first : text.find(end, first + begin.size());
  return last == text.npos ? text : text.erase(first, last + end.size() - first);
}

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<int> parse_int(std::string_view text) { return parse_number<int>(text); }
std::optional<std::int64_t> parse_int64(std::string_view text) { return parse_number<std::int64_t>(text); }
std::optional<double> parse_double(std::string_view text) { return parse_number<double>(text); }

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates,
                                   std::optional<std::size_t> most_edits) {
  std::optional<std::string> best;
  std::size_t best_distance = std::max<std::size_t>(2, most_edits.value_or(word.size() / 2)) + 1;
  for (const std::string& candidate : candidates) {
    std::size_t distance = edit_distance(word, candidate);
    if (distance >= best_distance || distance >= candidate.size()) continue;
    best_distance = distance;
    best = candidate;
  }
  return best;
}

std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  return fmt::format("{}", fmt::join(words, separator));
}
std::string joined(const std::vector<int>& numbers, std::string_view separator) {
  return fmt::format("{}", fmt::join(numbers, separator));
}
std::string joined(const std::vector<std::int64_t>& numbers, std::string_view separator) {
  return fmt::format("{}", fmt::join(numbers, separator));
}

std::string joined_by_or(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

// One edit turns "gpu" into "cpu", which says nothing about what was meant.
std::string choice_advice(std::string_view word, const std::vector<std::string>& choices) {
  constexpr std::size_t kShort = 3;
  const auto first = nearest(word, choices);
  const auto last = nearest(word, std::vector<std::string>(choices.rbegin(), choices.rend()));
  if (word.size() > kShort && first && first == last) return fmt::format("did you mean '{}'?", *first);
  return "use " + joined_by_or(choices);
}

std::string in_quotes(std::string_view name) {
  constexpr std::size_t kLongest = 200;
  std::string start(name.substr(0, kLongest));
  std::replace(start.begin(), start.end(), '\n', ' ');
  return fmt::format("'{}{}", visible_text(start),
                     name.size() > kLongest ? fmt::format("...' ({} letters)", name.size()) : "'");
}

std::string counted(std::int64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : thing.ends_with("ch") ? "es" : "s");
}

std::string plain_number(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{}", value);
  // Rounded first: 9.9996 has one digit before the point, but 10.00 has two.
  const double rounded = std::stod(fmt::format("{:.{}e}", value, digits - 1));
  const int decimals = digits - 1 - static_cast<int>(std::floor(std::log10(std::abs(rounded))));
  std::string text = fmt::format("{:.{}f}", value, std::max(decimals, 0));
  if (decimals > 0) text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

std::string readable_bytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, units[unit]);
}

std::string clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<std::int64_t>(std::min(seconds, 1e15));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string fold_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string format_table(const std::vector<std::string>& header, const Rows& rows) {
  Rows all = {header};
  all.insert(all.end(), rows.begin(), rows.end());
  std::vector<std::size_t> widths(header.size(), 0);
  for (const auto& row : all)
    for (std::size_t i = 0; i < row.size(); ++i) widths.at(i) = std::max(widths.at(i), row[i].size());
  std::string text;
  for (const auto& row : all) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}", row[i], widths[i] + 2);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

std::string json_error(std::string_view what) {
  constexpr std::size_t kLongest = 200;
  std::string text = without(std::string(what), "[json.exception.", "] ");
  text = without(std::move(text), "parse error", " at ");
  return visible_text(without(std::move(text), "syntax error while parsing ", " - "), kLongest);
}

}  // namespace braid
