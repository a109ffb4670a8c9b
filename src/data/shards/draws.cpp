#include "data/shards/draws.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "data/shards/sha1.h"

namespace braid {

std::uint32_t Draws::word() {
  ++words_;
  return static_cast<std::uint32_t>(engine_());
}

std::uint64_t Draws::below(std::uint64_t n) {
  BRAID_CHECK(n > 0, "nothing to draw from");
  if (n < std::uint64_t{1} << 28) return word() % n;
  const std::uint64_t high = word();
  return (high << 32 | word()) % n;
}

float Draws::uniform() { return static_cast<float>(word() & 0xffffff) * 0x1p-24f; }

std::vector<std::uint32_t> Draws::permutation(std::uint32_t n) {
  BRAID_CHECK(n <= kMaxPermutation, "a permutation of {}", n);
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  for (std::uint32_t i = 0; i + 1 < n; ++i) std::swap(order[i], order[i + word() % (n - i)]);
  return order;
}

std::size_t Draws::choose(const std::vector<float>& weights) {
  if (weights.size() == 1) return 0;
  // torch.cumsum adds float32 values in double and rounds each sum.
  double sum = 0;
  for (const float weight : weights) sum += static_cast<double>(weight);
  const float target = uniform() * static_cast<float>(sum);
  sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += static_cast<double>(weights[i]);
    if (static_cast<float>(sum) > target) return i;
  }
  throw_check_failed(__FILE__, __LINE__, "no weight is above zero");
}

void Draws::skip_to(std::uint64_t words) {
  BRAID_CHECK(words <= kMaxWords, "{} draws", words);
  engine_.seed(seed_);
  engine_.discard(words);
  words_ = words;
}

std::uint32_t worker_seed(std::int64_t global_worker, std::int64_t seed) {
  const auto digest = sha1(fmt::format("{},{}", global_worker, seed));
  std::uint32_t value = 0;
  for (std::size_t i = 16; i < 20; ++i) value = value << 8 | digest[i];
  return value;
}

}  // namespace braid
