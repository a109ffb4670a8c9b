// The steps are those of the public multimodal training example of Megatron-LM, including their rounding.
#include <algorithm>
#include <cmath>
#include <limits>

#include "data/image/patches.h"

namespace braid {
namespace {

// In patches. Doubles, because the steps scale by real factors.
struct Sides {
  double width, height;
  double patches() const { return width * height; }
};

// Half a patch more, rounded half to even: an odd multiple of the patch gains a patch, an even one does not.
double patches_along(int pixels, int patch) { return std::nearbyint(static_cast<double>(pixels) / patch + 0.5); }

Sides shrunk(Sides sides, double factor) {
  return {std::floor(factor * sides.width), std::floor(factor * sides.height)};
}
Sides enlarged(Sides sides, double factor) {
  return {std::ceil(factor * sides.width), std::ceil(factor * sides.height)};
}

// Enlarges an image until its shorter side reaches min_side. If the result exceeds the budget, the other side gets
// what is left; if that makes the other side too short instead, the image keeps its aspect. The reference keeps the
// aspect of wide images only; we do the same, unless a tall one would then exceed the budget.
Sides with_min_side(Sides sides, double budget, const DynamicResolutionConfig& config) {
  const bool is_tall = sides.width <= sides.height;
  const double shorter = std::min(sides.width, sides.height);
  const Sides wanted = enlarged(sides, config.min_side / (shorter * config.patch));
  if (wanted.patches() <= budget) return wanted;
  const double reached = is_tall ? wanted.width : wanted.height;
  const double rest = std::max(std::floor(budget / reached), 1.0);
  const bool keeps_aspect = is_tall ? reached > budget : rest * config.patch < config.min_side;
  if (keeps_aspect) return shrunk(sides, std::sqrt(budget / sides.patches()));
  return is_tall ? Sides{reached, rest} : Sides{rest, reached};
}

// `side` as a multiple of the divisor: rounded up if the budget allows it, else down.
double divisible(double side, double other, double divisor, double budget) {
  const double excess = std::fmod(side, divisor);
  if (excess == 0) return std::max(side, divisor);
  const double up = side - excess + divisor;
  return std::max(up * other <= budget ? up : side - excess, divisor);
}

// Rounding a side up to the divisor can exceed the budget if the image is very long or the budget is small.
Sides within_budget(Sides sides, double divisor, double budget) {
  double& longer = sides.width > sides.height ? sides.width : sides.height;
  double& shorter = sides.width > sides.height ? sides.height : sides.width;
  const auto fitting = [&](double other) { return std::max(std::floor(budget / other / divisor) * divisor, divisor); };
  if (sides.patches() > budget) longer = std::min(longer, fitting(shorter));
  if (sides.patches() > budget) shorter = std::min(shorter, fitting(longer));
  return sides;
}

}  // namespace

CellGrid fit_patches(PixelSize image, std::int64_t budget, const DynamicResolutionConfig& config) {
  const double limit = static_cast<double>(budget);
  Sides sides = {patches_along(image.width, config.patch), patches_along(image.height, config.patch)};
  sides = shrunk(sides, std::min(std::sqrt(limit / sides.patches()), 1.0));
  sides = {std::max(sides.width, 1.0), std::max(sides.height, 1.0)};
  if (budget > config.min_patches && sides.patches() < static_cast<double>(config.min_patches))
    sides = enlarged(sides, std::sqrt(static_cast<double>(config.min_patches) / sides.patches()));
  if (std::min(sides.width, sides.height) * config.patch < config.min_side) sides = with_min_side(sides, limit, config);
  sides.height = divisible(sides.height, sides.width, config.divisor, limit);
  sides.width = divisible(sides.width, sides.height, config.divisor, limit);
  sides = within_budget(sides, config.divisor, limit);
  return {static_cast<int>(sides.width), static_cast<int>(sides.height)};
}

std::vector<CellGrid> fit_images(const std::vector<PixelSize>& images, std::int64_t embeddings,
                                 const DynamicResolutionConfig& config) {
  constexpr int kRounds = 10;
  const std::int64_t count = static_cast<std::int64_t>(images.size());
  const std::int64_t room =
      std::max(std::max<std::int64_t>(embeddings, 0) * config.divisor * config.divisor, config.min_patches * count);
  const std::int64_t most = config.max_patches > 0 ? config.max_patches : std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> budgets(images.size(), std::max(std::min(room, most), config.min_patches));
  std::vector<CellGrid> grids(images.size());
  for (int round = 1;; ++round) {
    std::int64_t total = 0;
    for (std::size_t i = 0; i < images.size(); ++i) {
      grids[i] = fit_patches(images[i], budgets[i], config);
      total += grids[i].cells();
    }
    if (total <= room || round == kRounds) return grids;
    bool has_shrunk = false;
    const double share = static_cast<double>(room) / static_cast<double>(total);
    for (std::size_t i = 0; i < images.size(); ++i) {
      const auto scaled = static_cast<std::int64_t>(static_cast<double>(grids[i].cells()) * share);
      const std::int64_t budget = std::max(config.min_patches, scaled);
      has_shrunk |= budget < budgets[i];
      budgets[i] = budget;
    }
    if (!has_shrunk) std::fill(budgets.begin(), budgets.end(), config.min_patches);
  }
}

}  // namespace braid
