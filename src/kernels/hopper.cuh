// Instructions of Hopper (sm_90a): barriers in shared memory, the engine that copies boxes of tensors, and products of
// bf16 and fp8 tiles by a warpgroup.
//
// Layout. The copy engine (TMA) writes a box as rows of 128 bytes, and permutes the 16-byte units of a row by its
// number modulo 8, so that a product (WGMMA), which reads the same unit of 8 rows at once, meets no bank twice. A
// product reads its operands from shared memory through a 64-bit descriptor: the address, the distance between groups
// of 8 rows, that between blocks of 64 columns, and the kind of permutation. Sums stay in the registers of the
// warpgroup's 128 threads.
//
// Pipeline. Copies and products are asynchronous. A thread that starts copies arrives at a barrier with the number of
// their bytes; the barrier's phase ends when these have arrived, and readers wait for the end of a phase by its parity.
// Products are issued in groups; wait_for_products<n>() returns when at most n groups are under way. Stores by threads
// must be published before a copy or a product may read them.
#pragma once

#include <cuda.h>
#include <stdexcept>
#include <string>
#include "kernels/tensor_core.cuh"

namespace braid::kernels {

constexpr int kWarpgroup = 128;
constexpr int kSwizzledBytes = 128;  // of a row
constexpr int kProductBytes = 32;    // depth of a product

struct Barrier {
  std::uint64_t state;
};

__device__ inline void initialize(Barrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives; the phase ends only after so many bytes were copied, too.
__device__ inline void arrive_with_copies(Barrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}
// The phase ends only after so many bytes were copied, too.
__device__ inline void expect_copies(Barrier& barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}
// Arrives at the same barrier of a block of the cluster.
__device__ inline void arrive_in_cluster(Barrier& barrier, int block) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(&barrier)),
      "r"(block)
      : "memory");
}
// A barrier of all threads of the cluster.
__device__ inline void wait_for_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Waits for the end of the phase of that parity.
__device__ inline void wait(Barrier& barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

// The box of the tensor that starts at (x, y, z); elements outside of the tensor are zeros.
__device__ inline void copy_box(void* to, const CUtensorMap& tensor, int x, int y, int z, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(shared_address(to)),
      "l"(&tensor), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// The same to each block of the cluster whose bit is set, at the same place, with the same barrier.
__device__ inline void copy_box_to_blocks(void* to, const CUtensorMap& tensor, int x, int y, int z, Barrier& barrier,
                                          unsigned blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(&tensor), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z), "h"(static_cast<std::uint16_t>(blocks))
      : "memory");
}
// Multiples of 16 bytes.
__device__ inline void copy_bytes(void* to, const void* from, int bytes, Barrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}
__device__ inline void prefetch_descriptor(const CUtensorMap& tensor) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&tensor) : "memory");
}
// Makes a thread's stores to shared memory visible to the copy engine and to products.
__device__ inline void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// An operand of a product in shared memory, and the way to the next product's depth. Depth-major: the depth runs along
// the swizzled rows. Else, only in bf16, they hold 64 of the other dimension, and `kDepth` of them make a block.
template <bool kDepthMajor, int kDepth>
struct Operand {
  static constexpr std::uint64_t kStep = kDepthMajor ? kProductBytes / 16 : 16 * kSwizzledBytes / 16;

  __device__ static std::uint64_t descriptor(const void* data) {
    constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
    constexpr std::uint64_t kEightRows = 8 * kSwizzledBytes / 16,
                            kBlock = kDepthMajor ? 1 : kDepth * kSwizzledBytes / 16;
    return kSwizzle128 | kEightRows << 32 | kBlock << 16 | (shared_address(data) & 0x3ffff) >> 4;
  }
};

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most so many groups of products are under way.
template <int kGroups>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// clang-format off
#define BRAID_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
  "+f"(d[i + 6]), "+f"(d[i + 7])
#define BRAID_16(d, i) BRAID_8(d, i), BRAID_8(d, i + 8)
#define BRAID_32(d, i) BRAID_16(d, i), BRAID_16(d, i + 16)
#define BRAID_4(s, i) "+f"(s[i].values[0]), "+f"(s[i].values[1]), "+f"(s[i].values[2]), "+f"(s[i].values[3])
#define BRAID_REGISTERS_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define BRAID_REGISTERS_16 BRAID_REGISTERS_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define BRAID_REGISTERS_32 BRAID_REGISTERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define BRAID_REGISTERS_48 BRAID_REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define BRAID_REGISTERS_80 BRAID_REGISTERS_48 \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71," \
  "%72,%73,%74,%75,%76,%77,%78,%79"
#define BRAID_REGISTERS_96 BRAID_REGISTERS_80 \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"

// sum = left right, or sum += left right, for 64 x 192 elements and a depth of 16. Thread t holds rows
// t / 32 * 16 + t % 32 / 4 (elements 0 and 1 of four) and 8 below (2 and 3), and columns 8 i + t % 4 * 2 + {0, 1}
// (four i).
template <bool kLeftDepthMajor, bool kRightDepthMajor>
__device__ void multiply(float (&sum)[96], std::uint64_t left, std::uint64_t right, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\nwgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
      BRAID_REGISTERS_96 "}, %96, %97, add, 1, 1, %99, %100;\n}"
      : BRAID_32(sum, 0), BRAID_32(sum, 32), BRAID_32(sum, 64)
      : "l"(left), "l"(right), "r"(static_cast<int>(add)), "n"(kLeftDepthMajor ? 0 : 1), "n"(kRightDepthMajor ? 0 : 1));
}

// The same for 64 x 64 elements; each warp has the accumulators of 16 rows.
template <bool kLeftDepthMajor, bool kRightDepthMajor>
__device__ void multiply(Accumulator (&sum)[8], std::uint64_t left, std::uint64_t right, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      BRAID_REGISTERS_32 "}, %32, %33, add, 1, 1, %35, %36;\n}"
      : BRAID_4(sum, 0), BRAID_4(sum, 1), BRAID_4(sum, 2), BRAID_4(sum, 3), BRAID_4(sum, 4), BRAID_4(sum, 5),
        BRAID_4(sum, 6), BRAID_4(sum, 7)
      : "l"(left), "l"(right), "r"(static_cast<int>(add)), "n"(kLeftDepthMajor ? 0 : 1), "n"(kRightDepthMajor ? 0 : 1));
}

// The same for fp8 (e4m3), 64 x 160 or 64 x 192 elements and a depth of 32; both operands are depth-major.
__device__ inline void multiply_fp8(float (&sum)[80], std::uint64_t left, std::uint64_t right, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %82, 0;\nwgmma.mma_async.sync.aligned.m64n160k32.f32.e4m3.e4m3 {"
      BRAID_REGISTERS_80 "}, %80, %81, add, 1, 1;\n}"
      : BRAID_32(sum, 0), BRAID_32(sum, 32), BRAID_8(sum, 64), BRAID_8(sum, 72)
      : "l"(left), "l"(right), "r"(static_cast<int>(add)));
}
__device__ inline void multiply_fp8(float (&sum)[96], std::uint64_t left, std::uint64_t right, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\nwgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {"
      BRAID_REGISTERS_96 "}, %96, %97, add, 1, 1;\n}"
      : BRAID_32(sum, 0), BRAID_32(sum, 32), BRAID_32(sum, 64)
      : "l"(left), "l"(right), "r"(static_cast<int>(add)));
}
// The same for 64 x 96 elements; both operands are depth-major.
__device__ inline void multiply(float (&sum)[48], std::uint64_t left, std::uint64_t right, bool add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %50, 0;\nwgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
    BRAID_REGISTERS_48 "}, %48, %49, add, 1, 1, 0, 0;\n}"
    : BRAID_32(sum, 0), BRAID_16(sum, 32) : "l"(left), "l"(right), "r"(static_cast<int>(add)));
}

// sum += left right for twice as many columns as sums. The left operand is 16 columns of such sums as bf16 pairs; the
// right one is in shared memory, with columns along its rows. a to e are the numbers of the operands after the sums.
#define BRAID_PRODUCT(columns, sums, a, b, c, d, e) \
  __device__ inline void multiply_add(float (&sum)[sums], const unsigned (&left)[4], std::uint64_t right) { \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\nwgmma.mma_async.sync.aligned.m64n" #columns \
      "k16.f32.bf16.bf16 {" BRAID_REGISTERS_##sums "}, {%" #a ",%" #b ",%" #c ",%" #d "}, %" #e ", add, 1, 1, 1;\n}" \
      : BRAID_##sums(sum, 0) : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right)); \
  }
BRAID_PRODUCT(16, 8, 8, 9, 10, 11, 12)
BRAID_PRODUCT(32, 16, 16, 17, 18, 19, 20)
BRAID_PRODUCT(64, 32, 32, 33, 34, 35, 36)
#undef BRAID_PRODUCT
#undef BRAID_REGISTERS_96
#undef BRAID_REGISTERS_80
#undef BRAID_REGISTERS_48
#undef BRAID_REGISTERS_32
#undef BRAID_REGISTERS_16
#undef BRAID_REGISTERS_8
#undef BRAID_4
#undef BRAID_32
#undef BRAID_16
#undef BRAID_8
// clang-format on

// Keeps the compiler from reading the sums before a wait.
template <int kSize>
__device__ void hold(float (&sum)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

// Adds to four floats in global memory. The L2 cache adds, so that no thread waits for the old values; subnormal ones
// count as zeros.
__device__ inline void add_in_l2(float* to, const float4& values) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values.x), "f"(values.y),
               "f"(values.z), "f"(values.w)
               : "memory");
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

// Whether the current device has these instructions. A kernel that was compiled for another target is empty, and has no
// shared memory.
template <class... Parameters>
bool runs_on_hopper(void (*kernel)(Parameters...)) {
  const auto [major, minor] = compute_capability();
  if (major != 9 || minor != 0) return false;
  cudaFuncAttributes attributes = {};
  cudaFuncGetAttributes(&attributes, kernel);
  return attributes.sharedSizeBytes > 0;
}

// A tensor [z][y][x] with contiguous x, and the boxes of it that are copied. Strides are those of y and z, in elements.
struct Boxes {
  std::int64_t sizes[3], strides[2], box[3];
  CUtensorMapSwizzle swizzle;
};

// `what` is named if the copy engine cannot read the tensor.
template <class Element>
CUtensorMap tensor_map(const Element* data, const Boxes& x, const char* what) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  constexpr CUtensorMapDataType kType =
      sizeof(Element) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  cuuint64_t sizes[3], strides[2];
  cuuint32_t box[3], steps[] = {1, 1, 1};
  for (int i = 0; i < 3; ++i) sizes[i] = static_cast<cuuint64_t>(x.sizes[i]);
  for (int i = 0; i < 2; ++i) strides[i] = static_cast<cuuint64_t>(x.strides[i]) * sizeof(Element);
  for (int i = 0; i < 3; ++i) box[i] = static_cast<cuuint32_t>(x.box[i]);
  CUtensorMap map;
  const CUresult outcome =
      encode(&map, kType, 3, const_cast<Element*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             x.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (outcome != CUDA_SUCCESS)
    throw std::logic_error(std::string("the GPU's copy engine refuses ") + what + ", error " + std::to_string(outcome));
  return map;
}

}  // namespace braid::kernels
