#include "data/shards/energon_random.h"
#include "base/error.h"

namespace braid {
namespace {

constexpr std::uint32_t kWords = std::mt19937::state_size;

// The state of MT19937 that Python makes of a seed, as the seed sequence of std::mt19937.
struct PythonSeed {
  using result_type = std::uint32_t;
  std::uint32_t seed;

  template <class Iterator>
  void generate(Iterator state, Iterator) const {
    state[0] = 19650218;
    for (std::uint32_t i = 1; i < kWords; ++i) state[i] = 1812433253u * (state[i - 1] ^ state[i - 1] >> 30) + i;
    std::uint32_t i = 1;
    const auto advance = [&] {
      if (++i < kWords) return;
      state[0] = state[kWords - 1];
      i = 1;
    };
    for (std::uint32_t k = 0; k < kWords; ++k, advance())
      state[i] = (state[i] ^ (state[i - 1] ^ state[i - 1] >> 30) * 1664525u) + seed;
    for (std::uint32_t k = 1; k < kWords; ++k, advance())
      state[i] = (state[i] ^ (state[i - 1] ^ state[i - 1] >> 30) * 1566083941u) - i;
    state[0] = 0x80000000;
  }
};

// One block of 64 bytes, as FIPS 180-4 describes it.
void add_sha1_block(std::array<std::uint32_t, 5>& state, std::string_view block) {
  std::array<std::uint32_t, 80> words{};
  for (std::size_t i = 0; i < 64; ++i) words[i / 4] = words[i / 4] << 8 | static_cast<std::uint8_t>(block[i]);
  for (std::size_t i = 16; i < 80; ++i)
    words[i] = std::rotl(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
  auto [a, b, c, d, e] = state;
  for (std::size_t i = 0; i < 80; ++i) {
    const std::uint32_t mixed = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                                : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                                : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                                         : (b ^ c ^ d) + 0xca62c1d6;
    const std::uint32_t next = std::rotl(a, 5) + mixed + e + words[i];
    e = d;
    d = c;
    c = std::rotl(b, 30);
    b = a;
    a = next;
  }
  state = {state[0] + a, state[1] + b, state[2] + c, state[3] + d, state[4] + e};
}

std::uint64_t big_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<std::uint8_t>(byte);
  return value;
}

}  // namespace

std::uint64_t EnergonRandom::below(std::uint64_t n) {
  BRAID_CHECK(n > 0, "nothing to draw from");
  if (n < std::uint64_t{1} << 28) return word() % n;
  const std::uint64_t high = word();
  return (high << 32 | word()) % n;
}

std::vector<std::uint32_t> EnergonRandom::permutation(std::uint32_t n) {
  BRAID_CHECK(n <= kMaxPermutation, "a permutation of {}", n);
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  for (std::uint32_t i = 0; i + 1 < n; ++i) std::swap(order[i], order[i + word() % (n - i)]);
  return order;
}

std::size_t EnergonRandom::choose(const std::vector<float>& weights) {
  if (weights.size() == 1) return 0;
  // torch.cumsum adds float32 values in double and rounds each sum.
  const float target = uniform() * static_cast<float>(std::accumulate(weights.begin(), weights.end(), 0.0));
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += static_cast<double>(weights[i]);
    if (static_cast<float>(sum) > target) return i;
  }
  throw_check_failed(__FILE__, __LINE__, "no weight is above zero");
}

void EnergonRandom::skip_to(std::uint64_t words) {
  BRAID_CHECK(words <= kMaxWords, "{} random numbers", words);
  engine_.seed(seed_);
  engine_.discard(words);
  words_ = words;
}

std::string sha1(std::string_view text) {
  // Padding: a one bit, zeros up to the last eight bytes of a block, and there the length in bits.
  std::string padded(text);
  padded += '\x80';
  padded.append((64 + 56 - padded.size() % 64) % 64, '\0');
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(std::uint64_t{text.size()} * 8 >> shift);
  std::array<std::uint32_t, 5> state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  for (std::size_t at = 0; at < padded.size(); at += 64) add_sha1_block(state, std::string_view(padded).substr(at, 64));
  std::string digest;
  for (const std::uint32_t word : state)
    for (int shift = 24; shift >= 0; shift -= 8) digest += static_cast<char>(word >> shift);
  return digest;
}

std::uint64_t sha1_number(std::string_view text) { return big_endian(sha1(text).substr(0, 8)); }

std::uint32_t worker_seed(std::int64_t global_worker, std::int64_t seed) {
  return static_cast<std::uint32_t>(big_endian(sha1(fmt::format("{},{}", global_worker, seed)).substr(16)));
}

std::vector<std::size_t> python_shuffle(std::size_t size, std::uint32_t seed) {
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  PythonSeed python_seed{seed};
  std::mt19937 random(python_seed);
  // Takes as many of a word's highest bits as n has, of the first word for which they are below n.
  const auto below = [&](std::uint32_t n) {
    std::uint32_t value;
    do value = static_cast<std::uint32_t>(random()) >> (32 - std::bit_width(n));
    while (value >= n);
    return value;
  };
  for (std::size_t i = size; i-- > 1;) std::swap(order[i], order[below(static_cast<std::uint32_t>(i + 1))]);
  return order;
}

}  // namespace braid
