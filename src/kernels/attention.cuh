// Pieces of the attention kernels for Hopper: rows of heads in shared memory, their copies and products, and the order
// in which blocks take work.
#pragma once

#include "kernels/attention.h"
#include "kernels/hopper.cuh"

namespace braid::kernels::attention {

// kRows rows of a head in shared memory. Rows of 128 bytes, which are read without bank conflicts, hold the first 64
// columns. The rest follows in pieces of 16 columns, in rows of 32 bytes, so that no memory or product goes to padding.
template <int kRows_, int kWidth>
struct Panel {
  static constexpr int kRows = kRows_, kWide = 64, kPiece = 16, kNarrow = kWidth - kWide;
  static_assert(kNarrow > 0 && kNarrow % kPiece == 0);
  static constexpr int kWideBytes = kRows * kWide * 2, kPieceBytes = kRows * kPiece * 2;
  static constexpr int kCopied = kRows * kWidth * 2, kBytes = (kCopied + 1023) / 1024 * 1024;

  // Descriptors of a product's operand: the k-th 16 columns are the depth, and its rows begin at `row`.
  __device__ static std::uint64_t depth(unsigned panel, int row, int k) {
    if (k < kWide / 16) return wide(panel + row * 128 + k * 32);
    return narrow(panel + kWideBytes + (k - kWide / 16) * kPieceBytes + row * 32);
  }
  // The depth is 16 rows from `row` on.
  __device__ static std::uint64_t wide_columns(unsigned panel, int row) { return wide(panel + row * 128); }
  __device__ static std::uint64_t narrow_columns(unsigned panel, int row) {
    return narrow(panel + kWideBytes + row * 32);
  }

 private:
  // The swizzle, the bytes of eight rows and the bytes between blocks of columns, in units of 16 bytes.
  __device__ static std::uint64_t wide(unsigned address) {
    return std::uint64_t{1} << 62 | std::uint64_t{8 * 128 / 16} << 32 | std::uint64_t{1} << 16 | address >> 4;
  }
  __device__ static std::uint64_t narrow(unsigned address) {
    return std::uint64_t{3} << 62 | std::uint64_t{8 * 32 / 16} << 32 | std::uint64_t{kPieceBytes / 16} << 16 |
           address >> 4;
  }
};

struct PanelMaps {
  CUtensorMap wide, narrow;
};

template <class P>
__device__ void copy_panel(unsigned char* to, const PanelMaps& maps, int column, int row, Barrier& full) {
  arrive_with_copies(full, P::kCopied);
  copy_box(to, maps.wide, column, row, 0, full);
  copy_box(to + P::kWideBytes, maps.narrow, 0, row, (column + P::kWide) / P::kPiece, full);
}

// A place in a ring, and the parity of the number of times that the ring was passed.
template <int kStages>
struct Turn {
  int place = 0;
  unsigned parity = 0;
  __device__ void advance() {
    if (++place < kStages) return;
    place = 0;
    parity ^= 1;
  }
};

// Of the places of a ring: the copies have arrived; all readers have read them.
template <int kStages>
struct Barriers {
  Barrier full[kStages], empty[kStages];
  __device__ void initialize(int readers) {
    for (int i = 0; i < kStages; ++i) {
      kernels::initialize(full[i], 1);
      kernels::initialize(empty[i], readers);
    }
  }
};

// By every warp that has read.
__device__ inline void release(Barrier& empty) {
  if (lane_id() == 0) arrive(empty);
}

// clang-format off
#define BRAID_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
  "+f"(d[i + 6]), "+f"(d[i + 7])
#define BRAID_SUMS_8(d) BRAID_8(d, 0)
#define BRAID_NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define BRAID_SUMS_16(d) BRAID_SUMS_8(d), BRAID_8(d, 8)
#define BRAID_NAMES_16 BRAID_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define BRAID_SUMS_32(d) BRAID_SUMS_16(d), BRAID_8(d, 16), BRAID_8(d, 24)
#define BRAID_NAMES_32 BRAID_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define BRAID_SUMS_48(d) BRAID_SUMS_32(d), BRAID_8(d, 32), BRAID_8(d, 40)
#define BRAID_NAMES_48 BRAID_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"

// sum = left right, or sum += left right, for 64 rows, 96 columns and a depth of 16. Both operands are in shared memory
// and depth-major. Sums are distributed over threads as in hopper.cuh.
__device__ inline void multiply(float (&sum)[48], std::uint64_t left, std::uint64_t right, bool add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %50, 0;\nwgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
    BRAID_NAMES_48 "}, %48, %49, add, 1, 1, 0, 0;\n}"
    : BRAID_SUMS_48(sum) : "l"(left), "l"(right), "r"(static_cast<int>(add)));
}

// sum += left right for twice as many columns as sums. The left operand is 16 columns of such sums as bf16 pairs; the
// right one is in shared memory, with columns along its rows. a to e are the numbers of the operands after the sums.
#define BRAID_PRODUCT(columns, sums, a, b, c, d, e) \
  __device__ inline void multiply_add(float (&sum)[sums], const unsigned (&left)[4], std::uint64_t right) { \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\nwgmma.mma_async.sync.aligned.m64n" #columns \
      "k16.f32.bf16.bf16 {" BRAID_NAMES_##sums "}, {%" #a ",%" #b ",%" #c ",%" #d "}, %" #e ", add, 1, 1, 1;\n}" \
      : BRAID_SUMS_##sums(sum) : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right)); \
  }
BRAID_PRODUCT(16, 8, 8, 9, 10, 11, 12)
BRAID_PRODUCT(32, 16, 16, 17, 18, 19, 20)
BRAID_PRODUCT(64, 32, 32, 33, 34, 35, 36)
#undef BRAID_PRODUCT
#undef BRAID_NAMES_48
#undef BRAID_SUMS_48
#undef BRAID_NAMES_32
#undef BRAID_SUMS_32
#undef BRAID_NAMES_16
#undef BRAID_SUMS_16
#undef BRAID_NAMES_8
#undef BRAID_SUMS_8
#undef BRAID_8
// clang-format on

}  // namespace braid::kernels::attention
