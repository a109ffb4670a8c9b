// Matrix products of bf16 tiles in shared memory by one warp: mma.sync m16n8k16 with float accumulators, ldmatrix and
// cp.async; for sm_80 and later.
#pragma once

#include "kernels/device.cuh"

namespace braid::kernels {

using bf16 = __nv_bfloat16;

constexpr int kMma = 16;  // rows, columns (two products of 8) and depth of the smallest product

__device__ inline unsigned shared_address(const void* data) {
  return static_cast<unsigned>(__cvta_generic_to_shared(data));
}

// Rows of kColumns bf16 in shared memory, which begin at a multiple of 1024 bytes. The 16-byte units of a row are
// permuted so that ldmatrix, which reads the same unit of 8 rows, meets no bank twice.
template <int kColumns>
struct Tile {
  static constexpr int kUnits = kColumns / 8, kRowBytes = kColumns * sizeof(bf16);
  static_assert(kUnits == 8 || kUnits == 16);
  bf16* data;

  __device__ bf16* unit(int row, int unit) const { return data + (row * kUnits + (unit ^ (row & 7))) * 8; }
  // The address of unit(row + lane_row, unit ^ lane_unit), where `row` is a multiple of 8. With a known row and unit it
  // is one exclusive or away from what depends on the lane.
  __device__ unsigned address(int row, int unit, int lane_row, int lane_unit) const {
    const unsigned of_lane = shared_address(data) + lane_row * kRowBytes + (lane_unit ^ (lane_row & 7)) * 16;
    return (of_lane ^ unit * 16) + row * kRowBytes;
  }
  // The same tile without the rows above this one, a multiple of 8.
  __device__ Tile from_row(int row) const { return {data + row * kColumns}; }
};

// Copies 16 bytes to shared memory, or writes zeros there; complete after copies_arrived() and a barrier.
__device__ inline void copy_async(void* to, const void* from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copies_arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The first `valid` rows of a matrix, zeros below them; by all kThreads threads of a block.
template <int kRows, int kThreads, int kColumns>
__device__ void load_tile(Tile<kColumns> to, const bf16* from, std::int64_t stride, int valid) {
  constexpr int kUnits = kColumns / 8, kStep = kThreads / kUnits;
  static_assert(kThreads % kUnits == 0 && kRows % kStep == 0);
  static_assert(kStep % 8 == 0);  // so a thread's units have the same place in their rows
  const int first = threadIdx.x / kUnits, unit = threadIdx.x % kUnits;
  bf16* const place = to.unit(first, unit);
  const bf16* source = from + first * stride + unit * 8;
#pragma unroll 4
  for (int row = 0; row < kRows; row += kStep, source += kStep * stride)
    copy_async(place + row * kColumns, source, first + row < valid);
}

// An operand of a product: 16 x 16 elements over the lanes of a warp; as the right one, two of depth 16 and 8 columns.
struct Fragment {
  unsigned values[4];
};

template <bool kTransposed>
__device__ Fragment load_matrices(unsigned address) {
  Fragment f;
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.values[0]), "=r"(f.values[1]), "=r"(f.values[2]), "=r"(f.values[3])
                 : "r"(address));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.values[0]), "=r"(f.values[1]), "=r"(f.values[2]), "=r"(f.values[3])
                 : "r"(address));
  return f;
}

__device__ inline int lane_id() { return threadIdx.x % kWarp; }

// The left operand: rows and depth as they are in the tile (tile[row][k]), or exchanged (tile[k][row]). Also the
// elements of the tile in the order of an accumulator.
template <class SharedTile>
__device__ Fragment left(SharedTile tile, int row, int k) {
  const int lane = lane_id();
  return load_matrices<false>(tile.address(row, k / 8, lane % 16, lane / 16));
}
template <class SharedTile>
__device__ Fragment left_transposed(SharedTile tile, int row, int k) {
  const int lane = lane_id();
  return load_matrices<true>(tile.address(k, row / 8, lane / 16 * 8 + lane % 8, lane / 8 % 2));
}
// The right operand of tile[k][column], or of tile[column][k].
template <class SharedTile>
__device__ Fragment right(SharedTile tile, int k, int column) {
  const int lane = lane_id();
  return load_matrices<true>(tile.address(k, column / 8, lane % 16, lane / 16));
}
template <class SharedTile>
__device__ Fragment right_transposed(SharedTile tile, int k, int column) {
  const int lane = lane_id();
  return load_matrices<false>(tile.address(column, k / 8, lane / 16 * 8 + lane % 8, lane / 8 % 2));
}

// 16 rows of 8 columns over the lanes of a warp: values 0 and 1 are in row lane / 4, columns 2 (lane % 4) and the next;
// values 2 and 3 are 8 rows below.
struct Accumulator {
  float values[4] = {0, 0, 0, 0};
};

__device__ inline int row_of_lane() { return lane_id() / 4; }
__device__ inline int column_of_lane() { return lane_id() % 4 * 2; }

__device__ inline void multiply_half(Accumulator& sum, const Fragment& a, unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum.values[0]), "+f"(sum.values[1]), "+f"(sum.values[2]), "+f"(sum.values[3])
      : "r"(a.values[0]), "r"(a.values[1]), "r"(a.values[2]), "r"(a.values[3]), "r"(b0), "r"(b1));
}

// sums[0] and sums[1], 16 columns, += a b
__device__ inline void multiply_add(Accumulator* sums, const Fragment& a, const Fragment& b) {
  multiply_half(sums[0], a, b.values[0], b.values[1]);
  multiply_half(sums[1], a, b.values[2], b.values[3]);
}

__device__ inline unsigned pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ inline float2 unpack(unsigned pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

// 16 columns of an accumulator as the left operand of another product.
__device__ inline Fragment as_left(const Accumulator* columns) {
  const float *a = columns[0].values, *b = columns[1].values;
  return {pack(a[0], a[1]), pack(a[2], a[3]), pack(b[0], b[1]), pack(b[2], b[3])};
}

// Writes one row of 16 columns that lies over four lanes: `low` in columns column_of_lane() of the first 8, `high` in
// those of the last 8. Lanes exchange pairs so that each writes 8 bytes. All lanes of the warp call it.
__device__ inline void store_row(bf16* row, float2 low, float2 high, bool valid) {
  const unsigned a = pack(low.x, low.y), b = pack(high.x, high.y);
  const bool odd = lane_id() % 2;
  const unsigned got = __shfl_xor_sync(~0u, odd ? a : b, 1);
  const int column = odd ? 8 + column_of_lane() - 2 : column_of_lane();
  if (valid) *reinterpret_cast<uint2*>(row + column) = odd ? uint2{got, b} : uint2{a, got};
}

}  // namespace braid::kernels
