// Position tables against libtorch's own bilinear resizing of the whole table; pixel shuffle against its definition.
#include "ops/vision.h"
#include <stdexcept>
#include "ops/gradients.h"

namespace braid {
namespace {

using namespace testing;

Operator interpolated(PatchGrid grid) {
  return [grid](const Tensors& in) { return interpolate_positions(in[0], grid); };
}

Operator resized_and_cropped(std::int64_t side, PatchGrid grid) {
  return [=](const Tensors& in) {
    const std::int64_t size = std::max(grid.rows, grid.columns), channels = in[0].size(1);
    const at::Tensor image = in[0].view({1, side, side, channels}).permute({0, 3, 1, 2});
    const at::Tensor resized = at::upsample_bilinear2d(image, {size, size}, /*align_corners=*/false);
    const at::Tensor corner = resized.narrow(2, 0, grid.rows).narrow(3, 0, grid.columns);
    return corner.permute({0, 2, 3, 1}).reshape({grid.patches(), channels});
  };
}

const std::vector<PatchGrid> kGrids = {{4, 4}, {3, 3}, {1, 1}, {2, 4}, {4, 1}, {2, 3}, {3, 5}, {9, 2}, {8, 8}};

TEST(InterpolatePositions, IsTheCornerOfTheResizedTable) {
  for (const std::int64_t side : {1, 4})
    for (const PatchGrid grid : kGrids) {
      SCOPED_TRACE(::testing::Message() << "side " << side << " to " << grid.rows << " x " << grid.columns);
      const Tensors table = {random_tensor({side * side, 3}, 1)};
      check_gradients(interpolated(grid), resized_and_cropped(side, grid), table);
      check_partial_gradients(interpolated(grid), table);
    }
}

// libtorch computes the position of a sample in fp32, which at position p has an error of up to p epsilon, in both
// directions; neighbours differ by up to twice the largest value.
TEST(InterpolatePositions, AgreesInFloatAtRealisticSizes) {
  constexpr std::int64_t kSide = 32;
  const at::Tensor table = random_tensor({kSide * kSide, 8}, 2).to(at::kFloat);
  for (const PatchGrid grid : {PatchGrid{16, 16}, PatchGrid{24, 40}, PatchGrid{48, 20}})
    expect_close(interpolate_positions(table, grid), resized_and_cropped(kSide, grid)({table}),
                 2 * 2 * kSide * epsilon_of(at::kFloat));
}

// A term has a weight for each direction (a quotient and a difference) and two products. A table entry's gradient sums
// up to as many terms as there are patches; weights are at most 1, so that they may be left as they are among squares.
Roundings position_roundings(std::int64_t patches) { return {random_sum(patches, /*of_term=*/2 * 2 + 2)}; }

TEST(InterpolatePositions, SumsInFloatAndRoundsOnce) {
  for (const PatchGrid grid : kGrids)
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
      check_precision(interpolated(grid), {random_tensor({16, 5}, 3)}, dtype, position_roundings(grid.patches()),
                      interpolated(grid));
}

TEST(InterpolatePositions, OfTheTablesOwnSizeIsTheTable) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor table = random_tensor({16, 5}, 4).to(dtype);
    EXPECT_TRUE(at::equal(interpolate_positions(table, {4, 4}), table));
    EXPECT_TRUE(at::equal(interpolate_positions(table, {2, 4}), table.narrow(0, 0, 8)));
  }
  EXPECT_THROW(interpolate_positions(random_tensor({15, 5}, 4), {4, 4}), std::logic_error);
}

Operator placed(const std::vector<PatchGrid>& images) {
  return [images](const Tensors& in) { return place_patches(in[0], in[1], in[2], images); };
}

Operator placed_one_by_one(const std::vector<PatchGrid>& images) {
  return [images](const Tensors& in) {
    Tensors tokens = {in[0].narrow(0, 0, 0)};
    std::int64_t first = 0;
    for (const PatchGrid& image : images) {
      tokens.push_back(in[2]);
      tokens.push_back(in[0].narrow(0, first, image.patches()) + interpolate_positions(in[1], image));
      first += image.patches();
    }
    return at::cat(tokens);
  };
}

Tensors patches_table_and_class_token(const std::vector<PatchGrid>& images, std::int64_t side,
                                      std::int64_t class_tokens, std::int64_t channels) {
  return {random_tensor({total_patches(images), channels}, 1), random_tensor({side * side, channels}, 2),
          random_tensor({class_tokens, channels}, 3)};
}

TEST(PlacePatches, PutsClassTokensBeforePatchesPlusPositions) {
  for (const std::int64_t class_tokens : {0, 2})
    for (const std::vector<PatchGrid>& images : {kGrids, {{3, 2}, {3, 2}}, {{5, 1}}, {}}) {
      const Tensors inputs = patches_table_and_class_token(images, 4, class_tokens, 3);
      check_gradients(placed(images), placed_one_by_one(images), inputs);
      check_partial_gradients(placed(images), inputs);
    }
  EXPECT_THROW(placed({{2, 2}})(patches_table_and_class_token({{3, 2}}, 4, 2, 3)), std::logic_error);
}

// A position is stored before it is added.
TEST(PlacePatches, RoundsLittleAtAnySize) {
  const std::vector<PatchGrid> mixed = {{16, 16}, {2, 3}, {40, 24}, {16, 16}, {1, 50}}, many(70, {3, 2});
  std::vector<std::int64_t> widths = {1, 5, 8, 130};
  if (test_device().is_cuda()) widths.push_back(1280);  // a CPU would take seconds
  for (const std::int64_t side : {1, 4, 32})
    for (const std::int64_t channels : widths)
      for (const std::vector<PatchGrid>& images : {mixed, many}) {
        const Tensors inputs = patches_table_and_class_token(images, side, 3, channels);
        const Roundings roundings = {position_roundings(total_patches(images)).in_float, /*stored=*/2};
        for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
          check_precision(placed(images), inputs, dtype, roundings, placed(images));
      }
}

// Patch 10 * row + column of each image, image i from 100 * i.
TEST(PixelShuffle, JoinsSquaresOfPatchesRowByRow) {
  const at::Tensor wide = at::tensor({0, 1, 2, 3, 10, 11, 12, 13}, at::kFloat);
  const at::Tensor tall = at::tensor({100, 101, 110, 111, 120, 121, 130, 131}, at::kFloat);
  const at::Tensor x = at::cat({wide, tall}).unsqueeze(1).to(test_device());
  const at::Tensor expected =
      at::tensor({0, 1, 10, 11, 2, 3, 12, 13, 100, 101, 110, 111, 120, 121, 130, 131}, at::kFloat).view({4, 4});
  EXPECT_TRUE(at::equal(pixel_shuffle(x, {{2, 4}, {4, 2}}).cpu(), expected));
}

TEST(PixelShuffle, KeepsChannelsOfAPatchTogetherForwardAndBackward) {
  const std::vector<PatchGrid> images = {{2, 4}, {6, 2}, {2, 2}, {4, 4}};
  const Operator op = [&](const Tensors& in) { return pixel_shuffle(in[0], images); };
  const Operator naive = [&](const Tensors& in) {
    Tensors tokens;
    std::int64_t first = 0;
    for (const PatchGrid& image : images) {
      const auto patch = [&](std::int64_t row, std::int64_t column) {
        return in[0][first + row * image.columns + column];
      };
      for (std::int64_t row = 0; row < image.rows; row += 2)
        for (std::int64_t column = 0; column < image.columns; column += 2)
          tokens.push_back(at::cat(
              {patch(row, column), patch(row, column + 1), patch(row + 1, column), patch(row + 1, column + 1)}));
      first += image.patches();
    }
    return at::stack(tokens);
  };
  const at::Tensor x = random_tensor({40, 3}, 5);
  check_gradients(op, naive, {x});
  check_gradients(op, naive, {random_tensor({3, 40}, 6).t()});
  check_partial_gradients(op, {x});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const std::int64_t channels : {1, 3, 8, 1280}) {
      const Tensors inputs = {random_tensor({40, channels}, 7).to(dtype)};
      const at::Tensor output_grad = random_tensor({10, 4 * channels}, 8).to(dtype);
      const Evaluation got = evaluate(op, inputs, output_grad), expected = evaluate(naive, inputs, output_grad);
      EXPECT_TRUE(at::equal(got.output, expected.output));
      EXPECT_TRUE(at::equal(got.gradients[0], expected.gradients[0]));
    }
}

TEST(PixelShuffle, NeedsEvenSidesAndAllPatches) {
  EXPECT_THROW(pixel_shuffle(random_tensor({6, 2}, 1), {{3, 2}}), std::logic_error);
  EXPECT_THROW(pixel_shuffle(random_tensor({12, 2}, 1), {{2, 2}, {2, 2}}), std::logic_error);
  EXPECT_EQ(pixel_shuffle(random_tensor({0, 2}, 1), std::vector<PatchGrid>()).sizes(), at::IntArrayRef({0, 8}));
}

}  // namespace
}  // namespace braid
