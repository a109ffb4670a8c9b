#include "nn/config.h"
#include "base/error.h"

namespace braid {
namespace {

constexpr std::pair<const char*, bool RecomputeConfig::*> kParts[] = {{"full", &RecomputeConfig::full},
                                                                      {"norms", &RecomputeConfig::norms},
                                                                      {"activations", &RecomputeConfig::activations},
                                                                      {"experts", &RecomputeConfig::experts},
                                                                      {"mamba", &RecomputeConfig::mamba},
                                                                      {"vision", &RecomputeConfig::vision}};

bool RecomputeConfig::*part_named(const std::string& name) {
  for (const auto& [known, part] : kParts)
    if (known == name) return part;
  throw_check_failed(__FILE__, __LINE__, "nothing to recompute is called " + name);
}

}  // namespace

const std::vector<std::string>& recompute_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& part : kParts) all.emplace_back(part.first);
    return all;
  }();
  return names;
}

RecomputeConfig recompute_config(const std::vector<std::string>& names) {
  RecomputeConfig config;
  for (const std::string& name : names) config.*part_named(name) = true;
  return config;
}

std::vector<std::string> names_of(const RecomputeConfig& config) {
  std::vector<std::string> names;
  for (const auto& [name, part] : kParts)
    if (config.*part) names.emplace_back(name);
  return names;
}

// A layer that is computed again as a whole keeps nothing that its parts could save.
RecomputeConfig in_language(const RecomputeConfig& config) {
  return config.full ? RecomputeConfig{.full = true} : config;
}

RecomputeConfig in_encoder(const RecomputeConfig& config) {
  return config.full || config.vision ? RecomputeConfig{.full = true} : config;
}

}  // namespace braid
