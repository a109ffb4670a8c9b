#include "report/read_metrics.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/strings.h"
#include "report/run_record.h"

namespace braid {
namespace {

using nlohmann::json;

// Returns nothing if the line is not that of an iteration.
std::optional<std::int64_t> iteration_of_line(const json& line) {
  const auto number = line.is_object() ? number_of(line, "iteration") : std::nullopt;
  if (!number || !(*number >= 0 && *number <= kMostIterations)) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

// A line's key and the name of its curve.
constexpr const char* kCurves[][2] = {{"lm_loss", "lm_loss"},
                                      {"grad_norm", "grad_norm"},
                                      {"learning_rate", "learning_rate"},
                                      {"loss_scale", "loss_scale"},
                                      {"seq_load_balancing_loss", "load_balancing_loss"},
                                      {"iteration_ms", "iteration_ms"},
                                      {"tokens_per_s", "tokens_per_s"},
                                      {"consumed_samples", "consumed_samples"},
                                      {"time", "time"}};

// Every process has its own time of start; files without it tell a restart only by iterations that are run again.
bool is_restart(std::int64_t iteration, const std::optional<double>& started, const Attempt& before,
                const std::optional<double>& started_before) {
  return iteration <= before.last || started != started_before;
}

void flatten(const YAML::Node& node, const std::string& key, std::map<std::string, std::string>& settings) {
  if (node.IsMap()) {
    for (const auto& entry : node)
      flatten(entry.second, key.empty() ? entry.first.as<std::string>() : key + "." + entry.first.as<std::string>(),
              settings);
  } else if (node.IsSequence()) {
    YAML::Emitter text;
    text << YAML::Flow << node;
    settings[key] = text.c_str();
  } else if (node.IsScalar()) {
    settings[key] = node.Scalar();
  }
}

std::int64_t number_of(const std::map<std::string, std::string>& settings, const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? 1 : parse_int64(found->second).value_or(1);
}

}  // namespace

MetricsContents parse_metrics(const std::string& text) {
  MetricsContents contents;
  CurveBuilder curves;
  std::set<std::int64_t> skipped, nans;
  std::optional<double> started_before;
  std::istringstream lines(text);
  for (std::string text_line; std::getline(lines, text_line);) {
    if (text_line.empty()) continue;
    const json line = json::parse(text_line, nullptr, /*allow_exceptions=*/false);
    const auto iteration = iteration_of_line(line);
    if (!iteration) {
      ++contents.bad_lines;
      continue;
    }
    ++contents.lines;
    const std::int64_t at = *iteration;
    for (const auto& [key, curve] : kCurves) curves.add(curve, at, number_of(line, key));
    const bool is_skipped = line.value("skipped", json(false)) == true;
    if (is_skipped)
      skipped.insert(at);
    else
      skipped.erase(at);
    // JSON has no NaN. An iteration whose loss is not finite is skipped; one that had nothing to predict has no loss.
    if (const auto loss = line.find("lm_loss"); is_skipped && loss != line.end() && loss->is_null()) {
      curves.add("lm_loss", at, std::numeric_limits<double>::quiet_NaN());
      nans.insert(at);
    } else {
      nans.erase(at);
    }
    const auto started = number_of(line, "started");
    if (contents.attempts.empty() || is_restart(at, started, contents.attempts.back(), started_before))
      contents.attempts.push_back({.first = at, .began = started});
    started_before = started;
    contents.attempts.back().last = at;
    contents.attempts.back().ended = number_of(line, "time");
  }
  contents.curves = curves.build();
  contents.skipped.assign(skipped.begin(), skipped.end());
  contents.nans = std::ssize(nans);
  return contents;
}

MetricsContents read_metrics(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw DataError(fmt::format("cannot read {}", in_quotes(path)));
  return parse_metrics(text);
}

std::optional<std::map<std::string, std::string>> read_settings(const std::string& path) {
  try {
    std::map<std::string, std::string> settings;
    flatten(YAML::LoadFile(path), "", settings);
    return settings;
  } catch (const YAML::Exception&) {
    return std::nullopt;
  }
}

std::optional<std::int64_t> ranks_of(const std::map<std::string, std::string>& settings) {
  if (const auto world = settings.find("topology.world_size"); world != settings.end())
    return parse_int64(world->second);
  const auto colocated = settings.find("topology.colocated");
  const bool share = colocated != settings.end() && colocated->second == "true";
  std::int64_t ranks = 0;
  for (const auto& [key, value] : settings) {
    if (!key.starts_with("topology.modules.") || !key.ends_with(".kind")) continue;
    const std::string module = key.substr(0, key.size() - std::string_view("kind").size());
    std::int64_t own = 1;
    for (const char* size : {"tp", "cp", "dp", "pp"}) own *= number_of(settings, module + size);
    ranks = share ? std::max(ranks, own) : ranks + own;
  }
  return ranks > 0 ? std::optional(ranks) : std::nullopt;
}

}  // namespace braid
