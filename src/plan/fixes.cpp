#include "plan/fixes.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace braid {

std::string key_of(const ModuleConfig& module, const std::string& field) {
  std::string key = "topology.modules";
  if (!module.name.empty()) key += "." + module.name;
  return field.empty() ? key : key + "." + field;
}

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> found;
  for (std::int64_t i = 1; i * i <= n; ++i) {
    if (n % i) continue;
    found.push_back(i);
    if (i * i < n) found.push_back(n / i);
  }
  return found;
}

std::string dp_for(const ModuleConfig& module, std::int64_t ranks) {
  const std::int64_t replica = std::int64_t{module.tp} * module.cp * module.pp;
  if (ranks < 1 || ranks % replica) return "";
  return fmt::format("{}.dp={}", module.name, ranks / replica);
}

std::string use_one_of(std::vector<std::string> choices) {
  std::erase(choices, "");
  return fmt::format("use {}", fmt::join(choices, " or "));
}

std::string nearest_of(const std::string& key, const std::vector<std::int64_t>& values, std::int64_t given) {
  std::int64_t below = 0, above = 0;
  for (std::int64_t value : values) {
    if (value < given) below = std::max(below, value);
    if (value > given) above = above ? std::min(above, value) : value;
  }
  auto text = [&](std::int64_t value) { return value ? fmt::format("{}={}", key, value) : ""; };
  return use_one_of({text(below), text(above)});
}

std::string smaller_size(ModuleConfig module) {
  const std::pair<const char*, int*> sizes[] = {
      {"tp", &module.tp}, {"cp", &module.cp}, {"dp", &module.dp}, {"pp", &module.pp}};
  const auto [name, size] =
      *std::max_element(std::begin(sizes), std::end(sizes), [](auto& a, auto& b) { return *a.second < *b.second; });
  *size = 1;
  const std::int64_t room = kMaxWorldSize / grid_size(module);
  return room ? fmt::format("{}={} or less", name, room) : "smaller sizes";
}

std::vector<std::int64_t> possible_ep(const ModuleConfig& module, int num_experts) {
  const std::int64_t stage = std::int64_t{module.tp} * module.cp * module.dp;
  return divisors(std::gcd(stage % module.expt_tp ? stage : stage / module.expt_tp, std::int64_t{num_experts}));
}

}  // namespace braid
