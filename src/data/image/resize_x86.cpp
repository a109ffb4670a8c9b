// Resizing with AVX2 and SSE4.1; the fastest version is chosen at run time.
#include "data/image/resize_x86.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define BRAID_AVX2 __attribute__((target("avx2")))
#define BRAID_SSE4 __attribute__((target("sse4.1")))

namespace braid {
namespace {

// The weights of four neighbouring pixels, in the order in which the horizontal loops load them.
struct QuadWeights {
  std::int32_t high[2], low[2];
};

// Fills up the windows of all outputs to whole quads with weights of 0.
std::vector<QuadWeights> quads_of(const ResizeWeights& weights, int quads_each) {
  std::vector<QuadWeights> quads;
  quads.reserve(weights.outputs() * quads_each);
  for (int x = 0; x < weights.outputs(); ++x)
    for (int k = 0; k < 4 * quads_each; k += 4) {
      const auto weight = [&](int i) { return i < weights.stride ? weights.of(x)[i] : 0; };
      const PairWeights left = pair_of(weight(k), weight(k + 1)), right = pair_of(weight(k + 2), weight(k + 3));
      quads.push_back({{left.high, right.high}, {left.low, right.low}});
    }
  return quads;
}

// Arranges four RGB pixels (of 16 loaded bytes) as pairs of 16-bit numbers: r0 r1 g0 g1 b0 b1 - -, then those of 2
// and 3.
alignas(32) constexpr std::int8_t kPairsOfPixels[32] = {0, -1, 3, -1, 1, -1, 4,  -1, 2, -1, 5,  -1, -1, -1, -1, -1,
                                                        6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1};

BRAID_SSE4 void store_pixel(__m128i high, __m128i low, std::uint8_t* to) {
  const __m128i sum = _mm_add_epi32(_mm_slli_epi32(high, kLowBits), _mm_add_epi32(low, _mm_set1_epi32(kHalfLevel)));
  const __m128i shifted = _mm_srai_epi32(sum, kWeightBits);
  const __m128i words = _mm_packus_epi32(shifted, shifted);
  const int pixel = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  std::memcpy(to, &pixel, 3);
}

// Several rows at once share the loading of weights.
template <int kRows>
BRAID_AVX2 void horizontal_rows_avx2(const std::uint8_t* from, std::size_t from_bytes, const ResizeWeights& weights,
                                     const QuadWeights* quads, int quads_each, std::uint8_t* to, std::size_t to_bytes) {
  const __m256i arrange = _mm256_load_si256(reinterpret_cast<const __m256i*>(kPairsOfPixels));
  const __m256i to_high = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), to_low = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
  for (int x = 0; x < weights.outputs(); ++x, quads += quads_each) {
    const std::uint8_t* pixels = from + std::ptrdiff_t{3} * weights.windows[x].first;
    const int count = (weights.windows[x].count + 3) / 4;
    __m256i high[kRows], low[kRows];
    for (int row = 0; row < kRows; ++row) high[row] = low[row] = _mm256_setzero_si256();
    for (int k = 0; k < count; ++k, pixels += 12) {
      const __m256i quad = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(quads + k)));
      const __m256i high_weights = _mm256_permutevar8x32_epi32(quad, to_high);
      const __m256i low_weights = _mm256_permutevar8x32_epi32(quad, to_low);
      for (int row = 0; row < kRows; ++row) {
        const auto* at = reinterpret_cast<const __m128i*>(pixels + row * from_bytes);
        const __m256i pairs = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(at)), arrange);
        high[row] = _mm256_add_epi32(high[row], _mm256_madd_epi16(pairs, high_weights));
        low[row] = _mm256_add_epi32(low[row], _mm256_madd_epi16(pairs, low_weights));
      }
    }
    for (int row = 0; row < kRows; ++row) {
      const auto both = [](__m256i sum) BRAID_AVX2 {
        return _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
      };
      store_pixel(both(high[row]), both(low[row]), to + row * to_bytes + std::size_t{3} * x);
    }
  }
}

template <int kRows>
BRAID_SSE4 void horizontal_rows_sse4(const std::uint8_t* from, std::size_t from_bytes, const ResizeWeights& weights,
                                     const QuadWeights* quads, int quads_each, std::uint8_t* to, std::size_t to_bytes) {
  const auto* arrange = reinterpret_cast<const __m128i*>(kPairsOfPixels);
  for (int x = 0; x < weights.outputs(); ++x, quads += quads_each) {
    const std::uint8_t* pixels = from + std::ptrdiff_t{3} * weights.windows[x].first;
    const int count = (weights.windows[x].count + 3) / 4;
    __m128i high[kRows], low[kRows];
    for (int row = 0; row < kRows; ++row) high[row] = low[row] = _mm_setzero_si128();
    for (int k = 0; k < count; ++k, pixels += 12)
      for (int row = 0; row < kRows; ++row) {
        const auto* at = reinterpret_cast<const __m128i*>(pixels + row * from_bytes);
        const __m128i bytes = _mm_loadu_si128(at);
        for (int half = 0; half < 2; ++half) {
          const __m128i pairs = _mm_shuffle_epi8(bytes, arrange[half]);
          high[row] = _mm_add_epi32(high[row], _mm_madd_epi16(pairs, _mm_set1_epi32(quads[k].high[half])));
          low[row] = _mm_add_epi32(low[row], _mm_madd_epi16(pairs, _mm_set1_epi32(quads[k].low[half])));
        }
      }
    for (int row = 0; row < kRows; ++row) store_pixel(high[row], low[row], to + row * to_bytes + std::size_t{3} * x);
  }
}

using RowsFunction = void (*)(const std::uint8_t*, std::size_t, const ResizeWeights&, const QuadWeights*, int,
                              std::uint8_t*, std::size_t);

void horizontal(const std::uint8_t* from, int width, int rows, const ResizeWeights& weights, std::uint8_t* to,
                RowsFunction four_rows, RowsFunction one_row) {
  const std::size_t from_bytes = std::size_t{3} * width, to_bytes = std::size_t{3} * weights.windows.size();
  const int quads_each = (weights.stride + 3) / 4;
  const std::vector<QuadWeights> quads = quads_of(weights, quads_each);
  for (int y = 0; y < rows;) {
    const int step = y + 4 <= rows ? 4 : 1;
    (step == 4 ? four_rows : one_row)(from + y * from_bytes, from_bytes, weights, quads.data(), quads_each,
                                      to + y * to_bytes, to_bytes);
    y += step;
  }
}

void horizontal_avx2(const std::uint8_t* from, int width, int rows, const ResizeWeights& weights, std::uint8_t* to) {
  horizontal(from, width, rows, weights, to, horizontal_rows_avx2<4>, horizontal_rows_avx2<1>);
}

void horizontal_sse4(const std::uint8_t* from, int width, int rows, const ResizeWeights& weights, std::uint8_t* to) {
  horizontal(from, width, rows, weights, to, horizontal_rows_sse4<4>, horizontal_rows_sse4<1>);
}

// Two rows of bytes side by side are pairs of pixels. Unpacking works within halves of a register; packing does too and
// restores the order.
BRAID_AVX2 void vertical_row_avx2(const std::uint8_t* rows, std::size_t row_bytes, const PairWeights* pairs, int count,
                                  std::uint8_t* to) {
  const __m256i zero = _mm256_setzero_si256();
  for (std::size_t x = 0; x < row_bytes; x += 32) {
    __m256i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
    for (int k = 0; k < count; k += 2) {
      const std::uint8_t* at = rows + row_bytes * k + x;
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(k + 1 < count ? at + row_bytes : at));
      const __m256i left = _mm256_unpacklo_epi8(a, b), right = _mm256_unpackhi_epi8(a, b);
      const __m256i quarters[4] = {_mm256_unpacklo_epi8(left, zero), _mm256_unpackhi_epi8(left, zero),
                                   _mm256_unpacklo_epi8(right, zero), _mm256_unpackhi_epi8(right, zero)};
      const __m256i high_weights = _mm256_set1_epi32(pairs[k / 2].high);
      const __m256i low_weights = _mm256_set1_epi32(pairs[k / 2].low);
      for (int i = 0; i < 4; ++i) {
        high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(quarters[i], high_weights));
        low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(quarters[i], low_weights));
      }
    }
    __m256i sums[4];
    for (int i = 0; i < 4; ++i)
      sums[i] = _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(high[i], kLowBits),
                                                   _mm256_add_epi32(low[i], _mm256_set1_epi32(kHalfLevel))),
                                  kWeightBits);
    const __m256i words = _mm256_packus_epi32(sums[0], sums[1]), more = _mm256_packus_epi32(sums[2], sums[3]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + x), _mm256_packus_epi16(words, more));
  }
}

BRAID_SSE4 void vertical_row_sse4(const std::uint8_t* rows, std::size_t row_bytes, const PairWeights* pairs, int count,
                                  std::uint8_t* to) {
  const __m128i zero = _mm_setzero_si128();
  for (std::size_t x = 0; x < row_bytes; x += 16) {
    __m128i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
    for (int k = 0; k < count; k += 2) {
      const std::uint8_t* at = rows + row_bytes * k + x;
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(k + 1 < count ? at + row_bytes : at));
      const __m128i left = _mm_unpacklo_epi8(a, b), right = _mm_unpackhi_epi8(a, b);
      const __m128i quarters[4] = {_mm_unpacklo_epi8(left, zero), _mm_unpackhi_epi8(left, zero),
                                   _mm_unpacklo_epi8(right, zero), _mm_unpackhi_epi8(right, zero)};
      const __m128i high_weights = _mm_set1_epi32(pairs[k / 2].high), low_weights = _mm_set1_epi32(pairs[k / 2].low);
      for (int i = 0; i < 4; ++i) {
        high[i] = _mm_add_epi32(high[i], _mm_madd_epi16(quarters[i], high_weights));
        low[i] = _mm_add_epi32(low[i], _mm_madd_epi16(quarters[i], low_weights));
      }
    }
    __m128i sums[4];
    for (int i = 0; i < 4; ++i)
      sums[i] = _mm_srai_epi32(
          _mm_add_epi32(_mm_slli_epi32(high[i], kLowBits), _mm_add_epi32(low[i], _mm_set1_epi32(kHalfLevel))),
          kWeightBits);
    const __m128i words = _mm_packus_epi32(sums[0], sums[1]), more = _mm_packus_epi32(sums[2], sums[3]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + x), _mm_packus_epi16(words, more));
  }
}

void vertical_avx2(const std::uint8_t* from, std::size_t row_bytes, const ResizeWeights& weights, std::uint8_t* to) {
  resize_vertically(from, row_bytes, weights, to, vertical_row_avx2);
}

void vertical_sse4(const std::uint8_t* from, std::size_t row_bytes, const ResizeWeights& weights, std::uint8_t* to) {
  resize_vertically(from, row_bytes, weights, to, vertical_row_sse4);
}

}  // namespace

void resize_vertically(const std::uint8_t* from, std::size_t row_bytes, const ResizeWeights& weights, std::uint8_t* to,
                       ResizeRowFunction one_row) {
  std::vector<PairWeights> pairs(weights.stride / 2 + 1);
  for (int y = 0; y < weights.outputs(); ++y, to += row_bytes) {
    const auto [first, count] = weights.windows[y];
    const std::int32_t* values = weights.of(y);
    for (int k = 0; k < count; k += 2) pairs[k / 2] = pair_of(values[k], k + 1 < count ? values[k + 1] : 0);
    one_row(from + row_bytes * first, row_bytes, pairs.data(), count, to);
  }
}

std::vector<ResizeKernels> vector_resize_kernels() {
  std::vector<ResizeKernels> kernels;
  if (has_avx512_resize()) kernels.push_back(kAvx512Resize);
  if (__builtin_cpu_supports("avx2")) kernels.push_back({"AVX2", horizontal_avx2, vertical_avx2});
  if (__builtin_cpu_supports("sse4.1")) kernels.push_back({"SSE4.1", horizontal_sse4, vertical_sse4});
  return kernels;
}

}  // namespace braid
