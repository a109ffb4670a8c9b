#include "ops/vision.h"
#include <ATen/OpMathType.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include "base/error.h"
#include "kernels/rows.h"
#include "ops/has_kernel.h"
#include "tensor/copies.h"

namespace braid {
namespace {

// The first `count` rows of the matrix that linearly resizes `side` samples to `size`. Sample i is at i + 1/2;
// positions before the first or after the last sample take its value.   [count, side]
at::Tensor resize_matrix(std::int64_t count, std::int64_t size, std::int64_t side, const at::TensorOptions& options) {
  at::Tensor matrix = at::zeros({count, side}, at::kDouble);
  auto weights = matrix.accessor<double, 2>();
  const double scale = static_cast<double>(side) / static_cast<double>(size);
  for (std::int64_t i = 0; i < count; ++i) {
    const double source = std::max(0.0, (static_cast<double>(i) + 0.5) * scale - 0.5);
    const auto before = static_cast<std::int64_t>(source);
    const double share = source - static_cast<double>(before);
    weights[i][before] += 1 - share;
    weights[i][std::min(before + 1, side - 1)] += share;
  }
  return upload(matrix.to(c10::typeMetaToScalarType(options.dtype())), options.device());
}

std::int64_t table_side(const at::Tensor& table) {
  const auto side = std::llround(std::sqrt(static_cast<double>(table.size(0))));
  BRAID_CHECK_EQ(side * side, table.size(0), "a position table must be square");
  return side;
}

// Bilinear resizing is linear in rows and in columns separately, hence two small matrix products.
struct ResizeMatrices {
  at::Tensor to_rows, to_columns;  // [rows, side], [columns, side], in the dtype of the arithmetic
};

ResizeMatrices resize_matrices(const at::Tensor& table, PatchGrid grid) {
  const std::int64_t side = table_side(table);
  const at::TensorOptions options = table.options().dtype(at::toOpMathType(table.scalar_type())).requires_grad(false);
  const std::int64_t size = std::max(grid.rows, grid.columns);
  return {resize_matrix(grid.rows, size, side, options), resize_matrix(grid.columns, size, side, options)};
}

OutputAndSaved<ResizeMatrices> resized(const at::Tensor& table, PatchGrid grid) {
  const ResizeMatrices matrices = resize_matrices(table, grid);
  const std::int64_t side = matrices.to_rows.size(1), channels = table.size(1);
  const at::Tensor wide = table.to(matrices.to_rows.scalar_type()).reshape({side, side * channels});
  const at::Tensor stretched = at::mm(matrices.to_rows, wide).view({grid.rows, side, channels});
  const at::Tensor positions = at::matmul(matrices.to_columns, stretched).view({grid.patches(), channels});
  return {positions.to(table.scalar_type()), matrices};
}

at::Tensor resized_backward(const at::Tensor& grad, const ResizeMatrices& saved) {
  const std::int64_t rows = saved.to_rows.size(0), side = saved.to_rows.size(1), channels = grad.size(1);
  const at::Tensor wide = grad.to(saved.to_rows.scalar_type()).reshape({rows, saved.to_columns.size(0), channels});
  const at::Tensor stretched = at::matmul(saved.to_columns.t(), wide).view({rows, side * channels});
  return at::mm(saved.to_rows.t(), stretched).view({side * side, channels}).to(grad.scalar_type());
}

// call(grid, indices of its images) once per grid.
template <class Call>
void for_each_grid(const std::vector<PatchGrid>& images, const Call& call) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::size_t>> by_grid;
  for (std::size_t i = 0; i < images.size(); ++i) by_grid[{images[i].rows, images[i].columns}].push_back(i);
  for (const auto& [grid, which] : by_grid) call(PatchGrid{grid.first, grid.second}, which);
}

// The images as kernels read them.
at::Tensor image_table(const std::vector<PatchGrid>& images, const at::Device& device) {
  constexpr std::int64_t kFields = sizeof(kernels::ImageOnDevice) / sizeof(std::int64_t);
  const at::Tensor host = at::empty({static_cast<std::int64_t>(images.size()), kFields}, at::kLong);
  auto* entry = static_cast<kernels::ImageOnDevice*>(host.data_ptr());
  std::int64_t first = 0;
  for (const PatchGrid& image : images) {
    *entry++ = {first, image.rows, image.columns};
    first += image.patches();
  }
  return upload(host, device);
}

// For each image the lengths of its class tokens and of its patches.
std::vector<std::int64_t> lengths_with_class_tokens(const std::vector<PatchGrid>& images, std::int64_t class_tokens) {
  std::vector<std::int64_t> lengths;
  for (const PatchGrid& image : images) lengths.insert(lengths.end(), {class_tokens, image.patches()});
  return lengths;
}

// Calls visit(patches, tokens) for every image. Both arguments are views of shape [token rows, token columns, 2, 2, H].
template <class Visit>
void for_each_image(const at::Tensor& patches, const at::Tensor& tokens, const std::vector<PatchGrid>& images,
                    Visit visit) {
  std::int64_t begin = 0;
  for (const PatchGrid& image : images) {
    const std::int64_t rows = image.rows / 2, columns = image.columns / 2, channels = patches.size(1);
    visit(patches.narrow(0, begin, image.patches()).view({rows, 2, columns, 2, channels}).transpose(1, 2),
          tokens.narrow(0, begin / 4, rows * columns).view({rows, columns, 2, 2, channels}));
    begin += image.patches();
  }
}

void check_images(const at::Tensor& x, const std::vector<PatchGrid>& images) {
  for (const PatchGrid& image : images)
    BRAID_CHECK(image.rows % 2 == 0 && image.columns % 2 == 0,
                "an image of {} x {} patches cannot be divided into 2 x 2 squares", image.rows, image.columns);
  BRAID_CHECK_EQ(total_patches(images), x.size(0), "patches of {} images", images.size());
}

}  // namespace

at::Tensor interpolate_positions(const at::Tensor& table, PatchGrid grid) {
  return differentiable(
      "InterpolatePositionsBackward", {table}, [&] { return resized(table, grid); }, resized_backward);
}

OutputAndSaved<at::Tensor> place_patches_forward(const at::Tensor& patches, const at::Tensor& table,
                                                 const at::Tensor& class_token, const std::vector<PatchGrid>& images) {
  if (has_kernel({patches, table, class_token})) {
    const at::Tensor on_device = image_table(images, patches.device());
    const std::int64_t class_tokens = on_device.size(0) * class_token.size(0);
    const at::Tensor tokens = patches.new_empty({patches.size(0) + class_tokens, patches.size(1)});
    return {fill<kernels::place_patches>(tokens, with_dense_rows(patches), with_dense_rows(table), table_side(table),
                                         with_dense_rows(class_token), on_device),
            on_device};
  }
  if (images.empty()) return {patches.clone(), {}};
  Tensors parts = patches.split_with_sizes(lengths_with_class_tokens(images, 0));
  for (std::size_t i = 0; i < images.size(); ++i) parts[2 * i] = class_token;
  for_each_grid(images, [&](PatchGrid grid, const std::vector<std::size_t>& which) {
    const at::Tensor positions = resized(table, grid).output;
    for (const std::size_t i : which) parts[2 * i + 1] = parts[2 * i + 1] + positions;
  });
  return {at::cat(parts), {}};
}

Tensors place_patches_backward(const at::Tensor& grad, const PlacePatchesNeeds& needs,
                               const std::vector<PatchGrid>& images, const at::Tensor& on_device) {
  if (on_device.defined() && has_kernel({grad})) {
    const auto empty = [&](bool needed, std::int64_t rows) {
      return needed ? grad.new_empty({rows, grad.size(1)}) : at::Tensor();
    };
    const Tensors grads = {empty(needs.patches_grad, grad.size(0) - on_device.size(0) * needs.class_tokens),
                           empty(needs.positions_grad, needs.side * needs.side),
                           empty(needs.class_token_grad, needs.class_tokens)};
    call<kernels::place_patches_backward>(with_dense_rows(grad), needs.side, needs.class_tokens, on_device, grads[0],
                                          grads[1], grads[2]);
    return grads;
  }
  const Tensors parts = grad.split_with_sizes(lengths_with_class_tokens(images, needs.class_tokens));
  const at::TensorOptions wide = grad.options().dtype(at::toOpMathType(grad.scalar_type()));
  const at::Tensor class_token_grad = at::zeros({needs.class_tokens, grad.size(1)}, wide);
  const at::Tensor table_grad = at::zeros({needs.side * needs.side, grad.size(1)}, wide);
  Tensors of_patches;
  for (std::size_t i = 0; i < images.size(); ++i) {
    class_token_grad.add_(parts[2 * i]);
    of_patches.push_back(parts[2 * i + 1]);
  }
  for_each_grid(images, [&](PatchGrid grid, const std::vector<std::size_t>& which) {
    const at::Tensor sum = at::zeros({grid.patches(), grad.size(1)}, wide);
    for (const std::size_t i : which) sum.add_(of_patches[i]);
    table_grad.add_(resized_backward(sum, resize_matrices(table_grad, grid)));
  });
  return {images.empty() ? grad : at::cat(of_patches), table_grad.to(grad.scalar_type()),
          class_token_grad.to(grad.scalar_type())};
}

at::Tensor place_patches(const at::Tensor& patches, const at::Tensor& table, const at::Tensor& class_token,
                         const std::vector<PatchGrid>& images) {
  BRAID_CHECK_EQ(patches.size(0), total_patches(images), "patches of {} images", images.size());
  const PlacePatchesNeeds needs = {table_side(table), class_token.size(0), patches.requires_grad(),
                                   table.requires_grad(), class_token.requires_grad()};
  return differentiable(
      "PlacePatchesBackward", {patches, table, class_token},
      [&] { return place_patches_forward(patches, table, class_token, images); },
      [needs, images](const at::Tensor& grad, const at::Tensor& on_device) {
        return place_patches_backward(grad, needs, images, on_device);
      });
}

OutputAndSaved<at::Tensor> pixel_shuffle_forward(const at::Tensor& x, const std::vector<PatchGrid>& images) {
  const at::Tensor tokens = x.new_empty({x.size(0) / 4, x.size(1) * 4});
  if (has_kernel({x})) {
    const at::Tensor on_device = image_table(images, x.device());
    return {fill<kernels::join_squares>(tokens, with_dense_rows(x), on_device), on_device};
  }
  for_each_image(x, tokens, images, [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
  return {tokens, {}};
}

at::Tensor pixel_shuffle_backward(const at::Tensor& grad, const std::vector<PatchGrid>& images,
                                  const at::Tensor& on_device) {
  const at::Tensor patches = grad.new_empty({grad.size(0) * 4, grad.size(1) / 4});
  if (on_device.defined() && has_kernel({grad}))
    return fill<kernels::split_squares>(patches, with_dense_rows(grad), on_device);
  for_each_image(patches, grad.contiguous(), images,
                 [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
  return patches;
}

at::Tensor pixel_shuffle(const at::Tensor& x, const std::vector<PatchGrid>& images) {
  check_images(x, images);
  return differentiable(
      "PixelShuffleBackward", {x}, [&] { return pixel_shuffle_forward(x, images); },
      [images](const at::Tensor& grad, const at::Tensor& on_device) {
        return pixel_shuffle_backward(grad, images, on_device);
      });
}

}  // namespace braid
