#include "plan/cluster_config.h"
#include <regex>
#include "base/strings.h"

namespace braid {

std::optional<std::chrono::seconds> parse_wall_time(std::string_view text) {
  using namespace std::chrono;
  static const std::regex unlimited("unlimited|infinite", std::regex::icase);
  static const std::regex days_and_fields(R"((?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?)");
  const std::string whole(text);
  std::smatch match;
  if (std::regex_match(whole, unlimited)) return seconds::max();
  if (!std::regex_match(whole, match, days_and_fields)) return std::nullopt;
  std::array<std::int64_t, 5> number{};
  for (std::size_t i = 1; i < number.size(); ++i) {
    const auto parsed = match[i].matched ? parse_int(match[i].str()) : 0;
    if (!parsed) return std::nullopt;
    number[i] = *parsed;
  }
  const bool begins_with_hours = match[1].matched || match[4].matched;  // else with minutes
  const seconds time = begins_with_hours ? hours(24 * number[1] + number[2]) + minutes(number[3]) + seconds(number[4])
                                         : minutes(number[2]) + seconds(number[3]);
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
