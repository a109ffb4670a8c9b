// BLAKE2b with a digest of eight bytes (RFC 7693, without a key), as Python's hashlib.blake2b(digest_size=8).
#pragma once

namespace braid {

class Blake2b64 {
 public:
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  std::uint64_t digest() const;  // of what was added so far; its bytes as a big-endian number

 private:
  static constexpr std::size_t kBlock = 128;
  using State = std::array<std::uint64_t, 8>;
  using Block = std::array<std::byte, kBlock>;

  // `length`: of all bytes up to the end of the block.
  static void compress(State& state, const Block& block, std::uint64_t length, bool is_last);

  // The initial values with the parameters in the first word: fanout 1, depth 1, eight bytes of digest.
  State state_ = {0x6a09e667f3bcc908 ^ 0x01010008,
                  0xbb67ae8584caa73b,
                  0x3c6ef372fe94f82b,
                  0xa54ff53a5f1d36f1,
                  0x510e527fade682d1,
                  0x9b05688c2b3e6c1f,
                  0x1f83d9abfb41bd6b,
                  0x5be0cd19137e2179};
  Block block_{};
  std::size_t filled_ = 0;  // bytes of block_
  std::uint64_t length_ = 0;
};

}  // namespace braid
