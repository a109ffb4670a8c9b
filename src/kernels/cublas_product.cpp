#include "kernels/cublas_product.h"
#include <compare>
#include <cublasLt.h>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace braid::kernels {
namespace {

constexpr std::size_t kMaxWorkspaceBytes = 32 << 20;

// What cuBLAS chooses an algorithm by. All matrices are stored by rows, `stride` elements apart.
struct ProductShape {
  std::int64_t rows, columns, depth;  // left is [rows, depth], right is [depth, columns]
  std::int64_t left_stride, right_stride, stride;
  bool left_transposed, right_transposed;  // stored as [depth, rows], as [columns, depth]
  std::uint32_t alignment;                 // of all pointers, in bytes
  bool is_float, add, has_bias;
  Gelu gelu;
  auto operator<=>(const ProductShape&) const = default;
};

bool is_by_rows(const Tensor& x) { return x.strides[1] == 1; }
std::int64_t stride_of(const Tensor& x) { return x.strides[is_by_rows(x) ? 0 : 1]; }

ProductShape shape_of(const Product& product) {
  const auto& [left, right, bias, result, add, gelu, aux] = product;
  bool are_blocks = true;
  for (const Tensor* x : {&left, &right, &bias, &result, &aux})
    are_blocks = are_blocks && reinterpret_cast<std::uintptr_t>(x->data) % kBlockAlignment == 0;
  return {.rows = left.rows(),
          .columns = right.columns(),
          .depth = left.columns(),
          .left_stride = stride_of(left),
          .right_stride = stride_of(right),
          .stride = result.strides[0],
          .left_transposed = !is_by_rows(left),
          .right_transposed = !is_by_rows(right),
          .alignment = are_blocks ? kBlockAlignment : kLeastAlignment,
          .is_float = result.is_float,
          .add = add,
          .has_bias = bias.data != nullptr,
          .gelu = gelu};
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLAS failed: ") + what + ": " + cublasLtGetStatusString(status));
}

// One per GPU for the life of the process.
cublasLtHandle_t handle_of_gpu() {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;
  int gpu = 0;
  cudaGetDevice(&gpu);
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[gpu];
  if (handle == nullptr) check(cublasLtCreate(&handle), "cublasLtCreate");
  return handle;
}

// cuBLAS stores matrices by columns: a matrix stored by rows is the transposed one to it.
cublasLtMatrixLayout_t layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows),
                                   stride),
        "cublasLtMatrixLayoutCreate");
  return made;
}

template <class T>
void set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
}

cublasLtEpilogue_t epilogue(const ProductShape& shape) {
  switch (shape.gelu) {
    case Gelu::Forward: return shape.has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Gelu::Backward: return CUBLASLT_EPILOGUE_DGELU;
    default: return shape.has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

// The algorithm that cuBLAS chooses for a shape on the current GPU.
struct Descriptors {
  explicit Descriptors(const ProductShape& shape)
      : handle(handle_of_gpu()),
        left(shape.left_transposed ? layout(CUDA_R_16BF, shape.depth, shape.rows, shape.left_stride)
                                   : layout(CUDA_R_16BF, shape.rows, shape.depth, shape.left_stride)),
        right(shape.right_transposed ? layout(CUDA_R_16BF, shape.columns, shape.depth, shape.right_stride)
                                     : layout(CUDA_R_16BF, shape.depth, shape.columns, shape.right_stride)),
        result(layout(shape.is_float ? CUDA_R_32F : CUDA_R_16BF, shape.rows, shape.columns, shape.stride)),
        kept(shape.add ? 1 : 0), has_bias(shape.has_bias), has_aux(shape.gelu != Gelu::None) {
    check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    // result^T = right^T left^T
    set(product, CUBLASLT_MATMUL_DESC_TRANSA, shape.right_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(product, CUBLASLT_MATMUL_DESC_TRANSB, shape.left_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(shape));
    if (has_bias) set(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
    if (has_aux) {
      set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.stride);
      // Until the first run, any address of that alignment: cuBLAS looks at it when it is asked for an algorithm.
      set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, reinterpret_cast<void*>(std::uintptr_t{shape.alignment}));
    }
    find_algorithm(shape.alignment);
  }
  Descriptors(const Descriptors&) = delete;
  ~Descriptors() {
    cublasLtMatmulDescDestroy(product);
    for (cublasLtMatrixLayout_t matrix : {left, right, result}) cublasLtMatrixLayoutDestroy(matrix);
  }

  void find_algorithm(std::uint32_t alignment) {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspaceBytes);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(attribute, alignment);
    cublasLtMatmulHeuristicResult_t offer = {};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, product, right, left, result, result, preference, 1, &offer, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_SUCCESS && count > 0) algorithm = offer;
  }

  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t left, right, result;
  float kept;
  bool has_bias, has_aux;
  std::optional<cublasLtMatmulHeuristicResult_t> algorithm{};
};

// Not by two threads at once.
void run(const Descriptors& d, const Product& product, const Queue& queue) {
  const float one = 1;
  const std::size_t bytes = d.algorithm->workspaceSize;
  void* const workspace = bytes > 0 ? queue.allocate(bytes) : nullptr;
  const Tensor &left = product.left, &right = product.right, &result = product.result;
  if (d.has_bias) set(d.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias.data);
  if (d.has_aux) set(d.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.aux.data);
  check(cublasLtMatmul(d.handle, d.product, &one, right.data, d.right, left.data, d.left, &d.kept, result.data,
                       d.result, result.data, d.result, &d.algorithm->algo, workspace, bytes, queue.stream),
        "cublasLtMatmul");
}

}  // namespace

bool cublas_multiply(const Product& product, const Queue& queue) {
  constexpr std::size_t kMostShapes = 4096;  // images have many sizes
  static std::mutex mutex;
  static std::map<std::pair<int, ProductShape>, Descriptors> known;
  int gpu = 0;
  cudaGetDevice(&gpu);
  const ProductShape shape = shape_of(product);
  const std::lock_guard lock(mutex);
  if (known.size() >= kMostShapes) known.clear();
  const Descriptors& chosen = known.try_emplace({gpu, shape}, shape).first->second;
  if (!chosen.algorithm) return false;
  run(chosen, product, queue);
  return true;
}

}  // namespace braid::kernels
