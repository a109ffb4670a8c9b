#include "predict/what_if.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "plan/param_spec.h"

namespace braid {
namespace {

const std::vector<double> kLinkStops = {0.25, 0.5, 1, 2, 4}, kMediaStops = {0.5, 1, 2};
constexpr double kMediaTolerance = 0.1;  // relative error of the media at a stop

// The encoders of a recipe, by module; null for the language model.
std::vector<const EncoderConfig*> encoders_of(const Recipe& recipe) {
  std::vector<const EncoderConfig*> encoders;
  for (const ModuleConfig& module : recipe.topology.modules)
    encoders.push_back(module.kind == "encoder" ? &encoder_named(recipe.model.model, module.name) : nullptr);
  return encoders;
}

double area_of(const StepSizes::Extents& items) {
  double area = 0;
  for (const auto& extent : items) area += static_cast<double>(num_elements(extent));
  return area;
}

// All items of a sample have the same size.
StepSizes::Extents scaled(const StepSizes::Extents& items, const EncoderConfig& encoder, double factor) {
  if (items.empty()) return {};
  const double wanted = factor * static_cast<double>(items.size()), whole = std::floor(wanted);
  StepSizes::Extents result(whole, items.front());
  if (wanted == whole) return result;
  const std::int64_t side = std::llround((wanted - whole) * static_cast<double>(items.front().front()));
  result.push_back(fitting_extent(encoder, std::max<std::int64_t>(1, side), items.front().back()));
  return result;
}

// Whether samples can have so many media: a sequence has room for their tokens, and encoders accept their sizes.
bool is_possible(const TypicalSample& sample, const TypicalSample& changed, const Recipe& recipe, double factor) {
  const std::vector<const EncoderConfig*> encoders = encoders_of(recipe);
  std::int64_t rows = 0;
  for (std::size_t m = 0; m < encoders.size(); ++m) {
    const double wanted = factor * area_of(sample.media[m]);
    if (std::abs(area_of(changed.media[m]) - wanted) > kMediaTolerance * wanted) return false;
    for (const auto& extent : changed.media[m]) rows += rows_of(*encoders[m], extent);
  }
  return rows <= sample.tokens;
}

std::string name_of_media(const Recipe& recipe) {
  std::vector<std::string> names;
  for (const ModuleConfig& module : recipe.topology.modules)
    if (module.kind == "encoder") names.push_back(module.name);
  return names.size() == 1 ? names.front() + " per sample" : "media per sample";
}

// The rates of links are multiplied; their latencies stay.
HardwareProfile with_link_speeds(HardwareProfile hardware, double inside_node, double between_nodes) {
  for (RatePoint& point : hardware.inside_node.rates) point.gb_per_s *= inside_node;
  for (RatePoint& point : hardware.between_nodes.rates) point.gb_per_s *= between_nodes;
  return hardware;
}

}  // namespace

TypicalSample with_media(TypicalSample sample, const Recipe& recipe, double factor) {
  const std::vector<const EncoderConfig*> encoders = encoders_of(recipe);
  for (std::size_t m = 0; m < encoders.size(); ++m)
    if (encoders[m]) sample.media[m] = scaled(sample.media[m], *encoders[m], factor);
  return sample;
}

WhatIf::WhatIf(const Recipe& recipe, const HardwareProfile& hardware, const SimulateOptions& steps,
               const Largest& largest)
    : hardware_(hardware),
      steps_(steps),
      inside_{"speed inside a node", largest.ranks > 1 ? kLinkStops : std::vector{1.0}},
      between_{"speed between nodes", largest.nodes > 1 ? kLinkStops : std::vector{1.0}},
      media_{name_of_media(recipe), {}},
      pool_(static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))) {
  const TypicalSample sample = typical_sample(recipe, steps);
  const bool has_media = std::ranges::any_of(sample.media, [](const auto& items) { return !items.empty(); });
  for (const double stop : has_media ? kMediaStops : std::vector{1.0}) {
    TypicalSample changed = with_media(sample, recipe, stop);
    if (stop != 1 && !is_possible(sample, changed, recipe, stop)) continue;
    media_.stops.push_back(stop);
    samples_.push_back(std::move(changed));
  }
}

std::vector<WhatIfAxis> WhatIf::axes() const {
  std::vector<WhatIfAxis> axes;
  for (const WhatIfAxis* axis : {&inside_, &between_, &media_})
    if (axis->stops.size() > 1) axes.push_back(*axis);
  return axes;
}

std::vector<double> WhatIf::seconds_of(const Recipe& layout, const Simulation& simulation) {
  if (axes().empty()) return {};
  struct Point {
    double inside = 1, between = 1;
    std::size_t media = 0;
    bool operator==(const Point&) const = default;
  };
  std::vector<Point> points;
  for (const double inside : inside_.stops)
    for (const double between : between_.stops)
      for (std::size_t media = 0; media < samples_.size(); ++media)
        points.push_back({inside, simulation.nodes > 1 ? between : 1, media});
  std::vector<double> seconds(points.size());
  pool_.run(points.size(), [&](std::size_t i) {
    if (std::ranges::find(points, points[i]) != points.begin() + static_cast<std::ptrdiff_t>(i)) return;
    const auto draw = [&](const Recipe& recipe, const Topology& topology, int) {
      return equal_step(samples_[points[i].media], recipe, topology);
    };
    seconds[i] = simulate(layout, with_link_speeds(hardware_, points[i].inside, points[i].between),
                          {.draw = draw, .equal_replicas = true, .reading = steps_.reading})
                     .iteration_s;
  });
  const std::size_t as_it_is = std::ranges::find(media_.stops, 1) - media_.stops.begin();
  const auto first = [&](const Point& point) { return seconds[std::ranges::find(points, point) - points.begin()]; };
  const double scale = simulation.iteration_s / first({1, 1, as_it_is});
  std::vector<double> all;
  for (const Point& point : points) all.push_back(scale * first(point));
  return all;
}

}  // namespace braid
