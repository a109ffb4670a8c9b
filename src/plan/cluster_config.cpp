#include "plan/cluster_config.h"

#include <algorithm>
#include <cctype>

#include "base/strings.h"

namespace braid {
namespace {

// "04:00:00" as its numbers; nothing if any field is not a number.
std::optional<std::vector<int>> numbers_between_colons(std::string_view text) {
  std::vector<int> numbers;
  for (const std::string& part : split(text, ':')) {
    const bool digits =
        !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
    const auto number = digits ? parse_int(part) : std::nullopt;
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

bool is_unlimited(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  return upper == "UNLIMITED" || upper == "INFINITE";
}

}  // namespace

std::optional<std::chrono::seconds> parse_wall_time(std::string_view text) {
  using namespace std::chrono;
  if (is_unlimited(text)) return seconds::max();
  const std::size_t dash = text.find('-');
  const bool has_days = dash != std::string_view::npos;
  const auto day_count = has_days ? numbers_between_colons(text.substr(0, dash)) : std::vector<int>{0};
  const auto parts = numbers_between_colons(has_days ? text.substr(dash + 1) : text);
  if (!day_count || day_count->size() != 1 || !parts || parts->size() > 3) return std::nullopt;
  const auto part = [&](std::size_t i) { return i < parts->size() ? (*parts)[i] : 0; };
  seconds time = hours(24 * std::int64_t{day_count->front()});
  if (has_days || parts->size() == 3)
    time += hours(part(0)) + minutes(part(1)) + seconds(part(2));
  else
    time += minutes(part(0)) + seconds(part(1));
  return time > seconds(0) ? std::optional(time) : std::nullopt;
}

void describe(Fields& f, ClusterConfig& c) {
  f.field("gpus_per_node", c.gpus_per_node, "ranks per node");
  f.field("time", c.time, "wall time of one job, in Slurm's format");
  f.field("requeue", c.requeue, "save shortly before the time limit, then requeue and resume");
}

std::vector<Problem> validate(const ClusterConfig& c) {
  std::vector<Problem> problems;
  if (c.gpus_per_node < 1)
    problems.push_back(
        {fmt::format("gpus_per_node={} must be at least 1", c.gpus_per_node), "cluster.gpus_per_node", ""});
  if (!parse_wall_time(c.time))
    problems.push_back({fmt::format("time='{}' is not a time limit", c.time), "cluster.time",
                        "write hours:minutes:seconds or days-hours:minutes:seconds, e.g. 04:00:00"});
  return problems;
}

}  // namespace braid
