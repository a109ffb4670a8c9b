// The random numbers of Energon, which are those of a torch CPU generator (MT19937, consumed in the same way). Energon
// derives seeds with SHA-1; here SHA-1 does not protect against tampering.
#pragma once

namespace braid {

class EnergonRandom {
 public:
  explicit EnergonRandom(std::uint32_t seed) : seed_(seed), engine_(seed) {}

  std::uint64_t below(std::uint64_t n);                                         // torch.randint(0, n, ()); n >= 1
  float uniform() { return static_cast<float>(word() & 0xffffff) * 0x1p-24f; }  // torch.rand(1)
  std::vector<std::uint32_t> permutation(std::uint32_t n);  // torch.randperm(n), n <= kMaxPermutation
  // An index with probability proportional to its weight. A single weight takes no random number.
  std::size_t choose(const std::vector<float>& weights);

  // The state is the number of 32-bit words taken so far. Replaying a billion of them takes a few seconds.
  std::uint64_t words() const { return words_; }
  void skip_to(std::uint64_t words);

  static constexpr std::uint32_t kMaxPermutation = 1u << 27;  // torch takes them differently above 2^32 / 20
  static constexpr std::uint64_t kMaxWords = std::uint64_t{1} << 34;

 private:
  std::uint32_t word() {
    ++words_;
    return static_cast<std::uint32_t>(engine_());
  }

  std::uint32_t seed_;
  std::uint64_t words_ = 0;
  std::mt19937 engine_;
};

std::string sha1(std::string_view text);           // 20 bytes
std::uint64_t sha1_number(std::string_view text);  // the first eight of them, the highest first

// The seed of every generator of one worker: the last four bytes of the SHA-1 of "worker,seed".
std::uint32_t worker_seed(std::int64_t global_worker, std::int64_t seed);

// Python's random.Random(seed).shuffle, with which Energon shuffles shards before it splits them: what position each
// element of the shuffled list had before.
std::vector<std::size_t> python_shuffle(std::size_t size, std::uint32_t seed);

}  // namespace braid
