#include "kernels/cublas_product.h"

#include <cublasLt.h>

#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

namespace braid::kernels {
namespace {

constexpr std::size_t kMaxWorkspaceBytes = 32 << 20;

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
    case Gelu::Forward:
      return shape.has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Gelu::Backward:
      return CUBLASLT_EPILOGUE_DGELU;
    default:
      return shape.has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

}  // namespace

struct CublasProduct::Descriptors {
  explicit Descriptors(const ProductShape& shape)
      : handle(handle_of_gpu()),
        left(shape.left_transposed ? layout(CUDA_R_16BF, shape.depth, shape.rows, shape.left_stride)
                                   : layout(CUDA_R_16BF, shape.rows, shape.depth, shape.left_stride)),
        right(shape.right_transposed ? layout(CUDA_R_16BF, shape.columns, shape.depth, shape.right_stride)
                                     : layout(CUDA_R_16BF, shape.depth, shape.columns, shape.right_stride)),
        result(layout(shape.is_float ? CUDA_R_32F : CUDA_R_16BF, shape.rows, shape.columns, shape.stride)),
        kept(shape.add ? 1 : 0),
        has_bias(shape.has_bias),
        has_aux(shape.gelu != Gelu::None) {
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

CublasProduct::CublasProduct(const ProductShape& shape) : descriptors_(std::make_unique<Descriptors>(shape)) {}
CublasProduct::~CublasProduct() = default;

bool CublasProduct::is_possible() const { return descriptors_->algorithm.has_value(); }

std::size_t CublasProduct::workspace_bytes() const { return descriptors_->algorithm.value().workspaceSize; }

void CublasProduct::run(const ProductTensors& tensors, cudaStream_t stream) {
  const Descriptors& d = *descriptors_;
  const float one = 1;
  if (d.has_bias) set(d.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, tensors.bias);
  if (d.has_aux) set(d.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, tensors.aux);
  check(cublasLtMatmul(d.handle, d.product, &one, tensors.right, d.right, tensors.left, d.left, &d.kept, tensors.result,
                       d.result, tensors.result, d.result, &d.algorithm.value().algo,
                       tensors.workspace, workspace_bytes(), stream),
        "cublasLtMatmul");
}

}  // namespace braid::kernels
