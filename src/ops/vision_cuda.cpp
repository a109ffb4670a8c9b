#include <ATen/ops/empty.h>

#include "kernels/vision.h"
#include "ops/kernel_call.h"
#include "ops/vision.h"
#include "tensor/copies.h"

namespace braid::cuda {
namespace {

constexpr std::int64_t kFields = sizeof(kernels::ImageOnDevice) / sizeof(std::int64_t);

kernels::Images images_of(const at::Tensor& table, std::int64_t patches) {
  return {data<const kernels::ImageOnDevice>(table), table.size(0), patches};
}

at::Tensor matrix_like(const at::Tensor& x, std::int64_t rows, std::int64_t columns) {
  return at::empty({rows, columns}, x.options().requires_grad(false));
}

}  // namespace

at::Tensor image_table(const std::vector<PatchGrid>& images, const at::Device& device) {
  const at::Tensor host = at::empty({static_cast<std::int64_t>(images.size()), kFields}, at::kLong);
  auto* entry = static_cast<kernels::ImageOnDevice*>(host.data_ptr());
  std::int64_t first = 0;
  for (const PatchGrid& image : images) {
    *entry++ = {first, image.rows, image.columns};
    first += image.patches();
  }
  return upload(host, device);
}

at::Tensor pixel_shuffle_forward(const at::Tensor& x, const at::Tensor& table) {
  const at::Tensor rows = with_dense_rows(x), tokens = matrix_like(x, x.size(0) / 4, x.size(1) * 4);
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::join_squares(const_matrix<T>(rows), images_of(table, x.size(0)), data<T>(tokens), stream);
  });
  return tokens;
}

at::Tensor pixel_shuffle_backward(const at::Tensor& grad, const at::Tensor& table) {
  const at::Tensor rows = with_dense_rows(grad), patches = matrix_like(grad, grad.size(0) * 4, grad.size(1) / 4);
  call_kernel(grad, [&]<class T>(cudaStream_t stream) {
    kernels::split_squares(const_matrix<T>(rows), images_of(table, patches.size(0)), data<T>(patches), stream);
  });
  return patches;
}

at::Tensor place_patches_forward(const at::Tensor& patches, const at::Tensor& positions, const at::Tensor& class_token,
                                 const at::Tensor& table) {
  const at::Tensor rows = with_dense_rows(patches), by_cell = with_dense_rows(positions);
  const at::Tensor in_front = with_dense_rows(class_token);
  const at::Tensor tokens =
      matrix_like(patches, patches.size(0) + table.size(0) * class_token.size(0), patches.size(1));
  call_kernel(patches, [&]<class T>(cudaStream_t stream) {
    kernels::place_patches<T>({.patches = const_matrix<T>(rows),
                               .table = const_matrix<T>(by_cell),
                               .class_token = const_matrix<T>(in_front),
                               .side = table_side(positions),
                               .tokens = data<T>(tokens)},
                              images_of(table, patches.size(0)), stream);
  });
  return tokens;
}

Tensors place_patches_backward(const at::Tensor& grad, const PlacePatchesNeeds& needs, const at::Tensor& table) {
  const at::Tensor rows = with_dense_rows(grad);
  const std::int64_t patches = grad.size(0) - table.size(0) * needs.class_tokens, columns = grad.size(1);
  Tensors grads(3);
  if (needs.patches_grad) grads[0] = matrix_like(grad, patches, columns);
  if (needs.positions_grad) grads[1] = matrix_like(grad, needs.side * needs.side, columns);
  if (needs.class_token_grad) grads[2] = matrix_like(grad, needs.class_tokens, columns);
  call_kernel(grad, [&]<class T>(cudaStream_t stream) {
    kernels::place_patches_backward<T>({.grad = const_matrix<T>(rows),
                                        .side = needs.side,
                                        .class_tokens = needs.class_tokens,
                                        .patches_grad = data<T>(grads[0]),
                                        .table_grad = data<T>(grads[1]),
                                        .class_token_grad = data<T>(grads[2])},
                                       images_of(table, patches), stream);
  });
  return grads;
}

}  // namespace braid::cuda
