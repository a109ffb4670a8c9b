// Resizing with AVX-512: a byte permutation (VBMI) brings the inputs of several pixels into place, and VNNI multiplies
// and adds in one instruction.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "data/image/resize_x86.h"

#define BRAID_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))

namespace braid {
namespace {

constexpr int kRows = 8;           // that share the loading of a table
constexpr int kMostPixels = 5;     // a register has 16 sums, of which 15 are used
constexpr int kLoadedPixels = 21;  // whole ones in a register
constexpr __mmask64 kLowBytes = 0x5555'5555'5555'5555;

// What two inputs of each of several neighbouring outputs contribute: lane 3 * pixel + channel has its inputs from
// `from`, as 16-bit numbers, and its weights.
struct alignas(64) TwoInputs {
  std::uint8_t from[64];
  std::int32_t high[16], low[16];
};

// Neighbouring outputs that are computed at once. Step k reads the pixels from first + 2 k.
struct Block {
  int first, steps;
};

// The tables of all blocks.
class Blocks {
 public:
  explicit Blocks(const ResizeWeights& weights) : pixels_(pixels_for(weights)) {
    for (int x = 0; x < weights.outputs(); x += pixels_) add(weights, x, std::min(x + pixels_, weights.outputs()));
  }

  int pixels() const { return pixels_; }
  const std::vector<Block>& all() const { return blocks_; }
  const TwoInputs* tables() const { return tables_.data(); }

 private:
  // As many as have their first inputs in one register.
  static int pixels_for(const ResizeWeights& weights) {
    const auto first = [&](int x) { return weights.windows[std::min(x, weights.outputs() - 1)].first; };
    int pixels = kMostPixels;
    for (int x = 0; x < weights.outputs(); ++x)
      while (first(x + pixels - 1) + 2 - first(x) > kLoadedPixels) --pixels;
    return pixels;
  }

  void add(const ResizeWeights& weights, int begin, int end) {
    const int first = weights.windows[begin].first;
    int count = 0;
    for (int x = begin; x < end; ++x) count = std::max(count, weights.windows[x].count);
    blocks_.push_back({first, (count + 1) / 2});
    for (int k = 0; k < count; k += 2) {
      TwoInputs& table = tables_.emplace_back();
      for (int x = begin; x < end; ++x) {
        const auto weight = [&](int i) { return i < weights.stride ? weights.of(x)[i] : 0; };
        const PairWeights pair = pair_of(weight(k), weight(k + 1));
        for (int channel = 0; channel < 3; ++channel) {
          const int lane = 3 * (x - begin) + channel, byte = 3 * (weights.windows[x].first - first) + channel;
          table.from[4 * lane] = static_cast<std::uint8_t>(byte);
          table.from[4 * lane + 2] = static_cast<std::uint8_t>(byte + 3);
          table.high[lane] = pair.high;
          table.low[lane] = pair.low;
        }
      }
    }
  }

  int pixels_;
  std::vector<Block> blocks_{};
  std::vector<TwoInputs> tables_{};
};

BRAID_AVX512 __m128i levels_of(__m512i high, __m512i low) {
  const __m512i sum = _mm512_srai_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, kLowBits), low), kWeightBits);
  return _mm512_cvtusepi32_epi8(_mm512_max_epi32(sum, _mm512_setzero_si512()));
}

BRAID_AVX512 void horizontal_rows(const std::uint8_t* const (&from)[kRows], const Blocks& blocks, std::size_t to_bytes,
                                  std::uint8_t* const (&to)[kRows]) {
  const __m512i half = _mm512_set1_epi32(kHalfLevel);
  const TwoInputs* table = blocks.tables();
  std::size_t at = 0;
  for (const auto& [first, steps] : blocks.all()) {
    __m512i high[kRows], low[kRows];
    for (int row = 0; row < kRows; ++row) {
      high[row] = _mm512_setzero_si512();
      low[row] = half;
    }
    for (std::ptrdiff_t offset = std::ptrdiff_t{3} * first, end = offset + 6 * steps; offset < end;
         offset += 6, ++table) {
      const __m512i order = _mm512_load_si512(table->from);
      const __m512i high_weights = _mm512_load_si512(table->high), low_weights = _mm512_load_si512(table->low);
      for (int row = 0; row < kRows; ++row) {
        const __m512i inputs = _mm512_maskz_permutexvar_epi8(kLowBytes, order, _mm512_loadu_si512(from[row] + offset));
        high[row] = _mm512_dpwssd_epi32(high[row], inputs, high_weights);
        low[row] = _mm512_dpwssd_epi32(low[row], inputs, low_weights);
      }
    }
    // A row must not write into the next one, which may be finished.
    const std::size_t bytes = std::min<std::size_t>(3 * blocks.pixels(), to_bytes - at);
    const auto mask = static_cast<__mmask16>((1u << bytes) - 1);
    for (int row = 0; row < kRows; ++row) _mm_mask_storeu_epi8(to[row] + at, mask, levels_of(high[row], low[row]));
    at += bytes;
  }
}

void horizontal(const std::uint8_t* from, int width, int rows, const ResizeWeights& weights, std::uint8_t* to) {
  const std::size_t from_bytes = std::size_t{3} * width, to_bytes = std::size_t{3} * weights.windows.size();
  const Blocks blocks(weights);
  for (int y = 0; y < rows; y += kRows) {
    const std::uint8_t* inputs[kRows];
    std::uint8_t* outputs[kRows];
    for (int row = 0; row < kRows; ++row) {  // the last row several times if there are no more
      inputs[row] = from + std::min(y + row, rows - 1) * from_bytes;
      outputs[row] = to + std::min(y + row, rows - 1) * to_bytes;
    }
    horizontal_rows(inputs, blocks, to_bytes, outputs);
  }
}

// Two rows of bytes side by side are pairs of pixels. Unpacking works within lanes of a register; packing does too and
// restores the order.
BRAID_AVX512 void vertical_row(const std::uint8_t* rows, std::size_t row_bytes, const PairWeights* pairs, int count,
                               std::uint8_t* to) {
  const __m512i zero = _mm512_setzero_si512(), half = _mm512_set1_epi32(kHalfLevel);
  for (std::size_t x = 0; x < row_bytes; x += 64) {
    __m512i high[4] = {zero, zero, zero, zero}, low[4] = {half, half, half, half};
    for (int k = 0; k < count; k += 2) {
      const std::uint8_t* at = rows + row_bytes * k + x;
      const __m512i a = _mm512_loadu_si512(at), b = _mm512_loadu_si512(k + 1 < count ? at + row_bytes : at);
      const __m512i left = _mm512_unpacklo_epi8(a, b), right = _mm512_unpackhi_epi8(a, b);
      const __m512i quarters[4] = {_mm512_unpacklo_epi8(left, zero), _mm512_unpackhi_epi8(left, zero),
                                   _mm512_unpacklo_epi8(right, zero), _mm512_unpackhi_epi8(right, zero)};
      const __m512i high_weights = _mm512_set1_epi32(pairs[k / 2].high);
      const __m512i low_weights = _mm512_set1_epi32(pairs[k / 2].low);
      for (int i = 0; i < 4; ++i) {
        high[i] = _mm512_dpwssd_epi32(high[i], quarters[i], high_weights);
        low[i] = _mm512_dpwssd_epi32(low[i], quarters[i], low_weights);
      }
    }
    __m512i levels[4];
    for (int i = 0; i < 4; ++i)
      levels[i] = _mm512_srai_epi32(_mm512_add_epi32(_mm512_slli_epi32(high[i], kLowBits), low[i]), kWeightBits);
    const __m512i words = _mm512_packus_epi32(levels[0], levels[1]), more = _mm512_packus_epi32(levels[2], levels[3]);
    _mm512_storeu_si512(to + x, _mm512_packus_epi16(words, more));
  }
}

void vertical(const std::uint8_t* from, std::size_t row_bytes, const ResizeWeights& weights, std::uint8_t* to) {
  resize_vertically(from, row_bytes, weights, to, vertical_row);
}

}  // namespace

bool has_avx512_resize() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vnni");
}

const ResizeKernels kAvx512Resize = {"AVX-512", horizontal, vertical};

}  // namespace braid
