// Random numbers by index: the i-th value of a named field depends only on seed, name and i, never on which values were
// drawn before or on which rank. So every layout of ranks sees the same numbers. Philox 4x32-10.
#pragma once

namespace braid {

class RandomField {
 public:
  RandomField(std::uint64_t seed, std::string_view name);

  double uniform(std::uint64_t index) const;  // in [0, 1), 53 bits
  double normal(std::uint64_t index) const;   // mean 0, standard deviation 1

  // The same values for begin, begin + 1, ... in half the time, because values are generated in pairs.
  void fill_uniform(std::uint64_t begin, std::span<double> values) const;
  void fill_normal(std::uint64_t begin, std::span<double> values) const;

  // What a kernel needs to draw the same values (base/random_values.h).
  std::uint64_t seed() const { return seed_; }
  std::uint64_t name_hash() const { return name_; }

 private:
  std::uint64_t seed_, name_;
};

}  // namespace braid
