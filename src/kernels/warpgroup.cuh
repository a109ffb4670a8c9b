// Products of 64 x 64 elements by a warpgroup, with the operands of tensor_core.cuh: by Hopper's wgmma, which reads
// shared memory itself and runs asynchronously, else by each warp's mma.sync. A warp has the accumulators of 16 rows.
//
// Layout. An operand is stored as panels of 64 columns, one after another: a row of a panel is 128 bytes, permuted by
// Tile as wgmma expects it, so that both kinds of products read the same memory. cp.async fills it, on every GPU.
// Pipeline. copies_arrived(), publish_copies() and a barrier come before begin_product(), which returns while wgmma
// still runs; the warpgroup may then start the copies of the next stage, and calls wait_for_sums() before it reads
// them.
#pragma once

#include "kernels/hopper.cuh"

namespace braid::kernels {

constexpr int kPanel = 64;  // columns

// A matrix of kRows rows in panels of 64 columns, one after another.
template <int kRows, int kColumns>
struct Panels {
  bf16* data;

  __device__ Panels<kRows, kPanel> panel(int i) const { return {data + i * kRows * kPanel}; }
  __device__ Tile<kPanel> tile(int i) const { return {panel(i).data}; }
  __device__ unsigned address(int row, int unit, int lane_row, int lane_unit) const {
    constexpr int kUnits = Tile<kPanel>::kUnits;
    return tile(unit / kUnits).address(row, unit % kUnits, lane_row, lane_unit);
  }
  __device__ Panels from_row(int row) const { return {data + row * kPanel}; }

  // What a product of a warpgroup reads at depth k: the depth runs along the rows, or down the rows of one panel.
  template <bool kDepthMajor>
  __device__ std::uint64_t descriptor(int k) const {
    using Side = Operand<kDepthMajor, kRows>;
    static_assert(kDepthMajor || kColumns == kPanel);
    const int panel = kDepthMajor ? k / kPanel : 0;
    return Side::descriptor(tile(panel).data) + (k - panel * kPanel) / kMma * Side::kStep;
  }
};

template <int kThreads, int kRows, int kColumns>
__device__ void load_panels(Panels<kRows, kColumns> to, const bf16* from, std::int64_t stride, int valid) {
#pragma unroll
  for (int i = 0; i < kColumns / kPanel; ++i) load_tile<kRows, kThreads>(to.tile(i), from + i * kPanel, stride, valid);
}

// Makes copies to shared memory, after copies_arrived(), visible to products of warpgroups.
__device__ inline void publish_copies() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  publish_stores();
#endif
}

// Begins sums = rows right, or rows right^T, over kDepth columns of 64 rows. The operands must be published, and
// wait_for_sums() comes before a use of the sums.
template <bool kTransposed, int kDepth, int kRows, class Right>
__device__ void begin_product(Accumulator (&sums)[8], Panels<kRows, kDepth> rows, Right right_side) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  begin_products();
#pragma unroll
  for (int k = 0; k < kDepth; k += kMma)
    multiply<true, kTransposed>(sums, rows.template descriptor<true>(k), right_side.template descriptor<kTransposed>(k),
                                k > 0);
  end_products();
#else
  const auto own_rows = rows.from_row(threadIdx.x % kWarpgroup / kWarp * kMma);
  for (Accumulator& sum : sums) sum = {};
#pragma unroll
  for (int k = 0; k < kDepth; k += kMma) {
    const Fragment row = left(own_rows, 0, k);
#pragma unroll
    for (int n = 0; n < kPanel; n += kMma)
      multiply_add(&sums[n / 8], row, kTransposed ? right_transposed(right_side, k, n) : right(right_side, k, n));
  }
#endif
}

__device__ inline void wait_for_sums(Accumulator (&sums)[8]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  wait_for_products<0>();
#pragma unroll
  for (Accumulator& sum : sums) hold(sum.values);
#endif
}

}  // namespace braid::kernels
