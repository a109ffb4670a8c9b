#include "comm/nodelist.h"

#include <string_view>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

constexpr std::size_t kMaxHosts = 65536;

[[noreturn]] void malformed(const std::string& text, const char* why) {
  throw ConfigError(
      {fmt::format("'{}' is not a Slurm list: {}", text, why), "", "compare with `scontrol show hostnames`"});
}

// Splits at commas outside brackets.
std::vector<std::string> split_outside_brackets(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (char c : text) {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth < 0 || depth > 1) malformed(text, "brackets do not match");
    if (c == ',' && depth == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  if (depth != 0) malformed(text, "brackets do not match");
  return parts;
}

// "0012-0015,0020" -> 0012 0013 0014 0015 0020
std::vector<std::string> expand_ranges(const std::string& ranges, const std::string& text) {
  std::vector<std::string> numbers;
  for (const std::string& range : split(ranges, ',')) {
    const std::vector<std::string> ends = split(range, '-');
    const auto first = parse_int(ends.front()), last = parse_int(ends.back());
    if (ends.size() > 2 || !first || !last || *first < 0 || *last < *first) malformed(text, "bad range in brackets");
    if (static_cast<std::size_t>(*last - *first) >= kMaxHosts) malformed(text, "too many hosts");
    for (std::int64_t number = *first; number <= *last; ++number)
      numbers.push_back(fmt::format("{:0{}}", number, ends.front().size()));
  }
  return numbers;
}

// Expands one host pattern, which may contain several brackets: "rack[0-1]node[00-01]".
std::vector<std::string> expand_host(const std::string& pattern, const std::string& text) {
  const std::size_t open = pattern.find('[');
  if (open == std::string::npos) {
    if (pattern.empty()) malformed(text, "empty host name");
    return {pattern};
  }
  const std::size_t close = pattern.find(']', open);
  const std::string rest = pattern.substr(close + 1);
  const std::vector<std::string> tails = rest.empty() ? std::vector<std::string>{""} : expand_host(rest, text);
  std::vector<std::string> hosts;
  for (const std::string& number : expand_ranges(pattern.substr(open + 1, close - open - 1), text))
    for (const std::string& tail : tails) {
      hosts.push_back(pattern.substr(0, open) + number + tail);
      if (hosts.size() > kMaxHosts) malformed(text, "too many hosts");
    }
  return hosts;
}

}  // namespace

std::vector<std::string> expand_nodelist(const std::string& text) {
  std::vector<std::string> hosts;
  for (const std::string& pattern : split_outside_brackets(text))
    for (std::string& host : expand_host(pattern, text)) {
      hosts.push_back(std::move(host));
      if (hosts.size() > kMaxHosts) malformed(text, "too many hosts");
    }
  return hosts;
}

std::vector<int> expand_tasks_per_node(const std::string& text) {
  std::vector<int> counts;
  for (const std::string& part : split(text, ',')) {
    const std::size_t times = part.find("(x");
    const auto count = parse_int(part.substr(0, times));
    auto repeat = std::optional(1);
    if (times != std::string::npos)
      repeat = part.back() == ')' ? parse_int(std::string_view(part).substr(times + 2, part.size() - times - 3))
                                  : std::nullopt;
    if (!count || *count < 1 || !repeat || *repeat < 1) malformed(text, "expected counts such as 8(x4),3");
    if (counts.size() + static_cast<std::size_t>(*repeat) > kMaxHosts) malformed(text, "too many hosts");
    counts.insert(counts.end(), static_cast<std::size_t>(*repeat), *count);
  }
  return counts;
}

}  // namespace braid
