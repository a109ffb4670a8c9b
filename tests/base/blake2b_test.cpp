// BLAKE2b against Python's hashlib.blake2b(bytes((i * 7 + i // 256) % 256 for i in range(n)), digest_size=8).
#include "base/blake2b.h"
#include <gtest/gtest.h>

namespace braid {
namespace {

std::string counting(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += static_cast<char>(i * 7 + i / 256);
  return text;
}

TEST(Blake2b64, HasPythonsDigests) {
  const std::pair<std::size_t, std::uint64_t> digests[] = {
      {0, 0xe4a6a0577479b2b4},   {1, 0x94f6d9cdd1ea8248},   {3, 0xf5bb369538126bf8},   {127, 0x7a7597e741b39c5d},
      {128, 0x3c50dc24acf9021e}, {129, 0xe5ae84605fae8733}, {255, 0xfdef57ecb3d4c241}, {256, 0xe87d780152aba41b},
      {257, 0x7f433d84976e4baf}, {1000, 0x4593bb754eaf0961}};
  for (const auto& [size, digest] : digests) {
    Blake2b64 hash;
    hash.add(counting(size));
    EXPECT_EQ(hash.digest(), digest) << size;
  }
}

TEST(Blake2b64, PartsGiveTheDigestOfTheWhole) {
  const std::string text = counting(700);
  Blake2b64 whole;
  whole.add(text);
  for (const std::size_t part : {1u, 7u, 64u, 127u, 128u, 129u, 300u}) {
    Blake2b64 hash;
    for (std::size_t at = 0; at < text.size(); at += part) {
      hash.add(std::string_view(text).substr(at, part));
      hash.digest();  // changes nothing
    }
    EXPECT_EQ(hash.digest(), whole.digest()) << part;
  }
}

}  // namespace
}  // namespace braid
