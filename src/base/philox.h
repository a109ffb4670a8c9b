// Random numbers by index: the i-th value of a named field depends only on seed, name and i, never on which values were
// drawn before or on which rank. So every layout of ranks sees the same numbers. Philox 4x32-10.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace braid {

// One block of Philox 4x32 with ten rounds.
std::array<std::uint32_t, 4> philox(const std::array<std::uint32_t, 4>& counter,
                                    const std::array<std::uint32_t, 2>& key);

class RandomField {
 public:
  RandomField(std::uint64_t seed, std::string_view name);

  double uniform(std::uint64_t index) const;  // in [0, 1), 53 bits
  double normal(std::uint64_t index) const;   // mean 0, standard deviation 1

  // The same values for begin, begin + 1, ... in half the time, because values are generated in pairs.
  void fill_uniform(std::uint64_t begin, std::span<double> values) const;
  void fill_normal(std::uint64_t begin, std::span<double> values) const;

 private:
  std::uint64_t seed_, name_;
};

}  // namespace braid
