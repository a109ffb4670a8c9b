#include "base/blake2b.h"

namespace braid {
namespace {

constexpr std::uint64_t kInitial[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
                                       0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

// The order of a block's words in each round; rounds 10 and 11 repeat the first two.
constexpr std::uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

// Words of the columns, then of the diagonals of the 4 x 4 state.
constexpr std::uint8_t kMixed[8][4] = {{0, 4, 8, 12},  {1, 5, 9, 13},  {2, 6, 10, 14}, {3, 7, 11, 15},
                                       {0, 5, 10, 15}, {1, 6, 11, 12}, {2, 7, 8, 13},  {3, 4, 9, 14}};

void mix(std::uint64_t& a, std::uint64_t& b, std::uint64_t& c, std::uint64_t& d, std::uint64_t x, std::uint64_t y) {
  a += b + x;
  d = std::rotr(d ^ a, 32);
  c += d;
  b = std::rotr(b ^ c, 24);
  a += b + y;
  d = std::rotr(d ^ a, 16);
  c += d;
  b = std::rotr(b ^ c, 63);
}

}  // namespace

void Blake2b64::compress(State& state, const Block& block, std::uint64_t length, bool is_last) {
  std::uint64_t words[16] = {}, v[16];
  for (std::size_t i = 0; i < kBlock; ++i) words[i / 8] |= static_cast<std::uint64_t>(block[i]) << (8 * (i % 8));
  for (std::size_t i = 0; i < 8; ++i) {
    v[i] = state[i];
    v[i + 8] = kInitial[i];
  }
  v[12] ^= length;  // the upper half of the length is 0
  if (is_last) v[14] = ~v[14];
  for (std::size_t round = 0; round < 12; ++round)
    for (std::size_t i = 0; i < 8; ++i) {
      const auto& [a, b, c, d] = kMixed[i];
      const std::uint8_t* order = kOrder[round % 10];
      mix(v[a], v[b], v[c], v[d], words[order[2 * i]], words[order[2 * i + 1]]);
    }
  for (std::size_t i = 0; i < 8; ++i) state[i] ^= v[i] ^ v[i + 8];
}

// The last block, even a full one, is kept for digest(), which marks it.
void Blake2b64::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (filled_ == kBlock) {
      compress(state_, block_, length_, false);
      filled_ = 0;
    }
    const std::size_t taken = std::min(bytes.size(), kBlock - filled_);
    std::ranges::copy(bytes.first(taken), block_.begin() + static_cast<std::ptrdiff_t>(filled_));
    filled_ += taken;
    length_ += taken;
    bytes = bytes.subspan(taken);
  }
}

std::uint64_t Blake2b64::digest() const {
  State state = state_;
  Block block = block_;
  std::fill(block.begin() + static_cast<std::ptrdiff_t>(filled_), block.end(), std::byte{0});
  compress(state, block, length_, true);
  std::uint64_t number = 0;  // the digest is little-endian
  for (std::size_t i = 0; i < 8; ++i) number = number << 8 | (state[0] >> (8 * i) & 0xff);
  return number;
}

}  // namespace braid
