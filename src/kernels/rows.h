// Operators that treat rows of channels one by one, and sums over rows. Tensors are matrices whose rows may be some
// columns of wider ones, results are dense, and a tensor without data is absent or not wanted, unless something else is
// said. Sums are always added in the same order.
#pragma once

#include "kernels/tensor.h"

namespace braid::kernels {

// Functions of one number.
enum class Activation {
  SquaredRelu,  // max(x, 0)^2
  GeluErf,      // x * Phi(x), with Phi the cumulative distribution function of the standard normal distribution
  GeluTanh,     // its approximation x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2
  QuickGelu,    // x * sigmoid(1.702 x)
};

// Element by element; all tensors are dense.
void activation_forward(const Tensor& x, Activation kind, const Tensor& y, const Queue& queue);
void activation_backward(const Tensor& grad, const Tensor& x, Activation kind, const Tensor& x_grad,
                         const Queue& queue);

// y = max(x, 0)^2 * scale. A row has the scale of its place, or of its number without places.
void scaled_squared_relu_forward(const Tensor& x, const Tensor& scales, const Tensor& places, const Tensor& y,
                                 const Queue& queue);
// x_grad = 2 max(x, 0) grad scale; the row's sum of max(x, 0)^2 grad goes to its scale's place in scale_grad.
void scaled_squared_relu_backward(const Tensor& grad, const Tensor& x, const Tensor& scales, const Tensor& places,
                                  const Tensor& x_grad, const Tensor& scale_grad, const Queue& queue);

// y = gate sigmoid(gate) up, with x = gate | up.
void swiglu_forward(const Tensor& x, const Tensor& y, const Queue& queue);
void swiglu_backward(const Tensor& grad, const Tensor& x, const Tensor& x_grad, const Queue& queue);

// RMS and layer norms of rows, optionally of a sum of two matrices. Without a bias a norm is an RMS norm:
//   s = x + branch + branch_bias, rounded;  y = s / sqrt(mean(s^2) + eps) * weight
// with one it is a layer norm, which has a mean:
//   y = (s - mean(s)) / sqrt(mean((s - mean(s))^2) + eps) * weight + bias
constexpr std::int64_t kWidestNorm = 8192;  // columns

// Writes s to `sum` if there is a branch.   mean, inverse_root: [rows]
void norm_forward(const Tensor& x, const Tensor& branch, const Tensor& branch_bias, const Tensor& weight,
                  const Tensor& bias, float eps, const Tensor& sum, const Tensor& y, const Tensor& mean,
                  const Tensor& inverse_root, const Queue& queue);
// The gradient of s, to which `sum_grad`, that of the output `sum`, is added; it is also that of x and of branch.
// parameter_grads: of the weight; of a layer norm, then of the bias, then, if there is a third row, the column sums of
// s_grad: the gradient of a bias that the branch's rows share.
void norm_backward(const Tensor& grad, const Tensor& sum_grad, const Tensor& s, const Tensor& weight,
                   const Tensor& mean, const Tensor& inverse_root, const Tensor& s_grad, const Tensor& parameter_grads,
                   const Queue& queue);

// sums[column] = the sum of x[row][column] over all rows.
void column_sum(const Tensor& x, const Tensor& sums, const Queue& queue);

// The columns of a vocabulary that this rank has the logits or embeddings of.
struct VocabularySlice {
  std::int64_t first = 0, all = 0;  // its first column; the columns on all ranks
};

// Of each row's logits here: the largest, the sum of exp(logit - max), and the label's logit, 0 if it is not here. The
// loss, log(sum) + max - found, is right if all columns are here; it is NaN for a label outside the vocabulary. A row
// with the label `ignored` is not read: its loss is 0.   results: [4, rows]: max, sum, found, loss
void cross_entropy_forward(const Tensor& logits, const Tensor& labels, const VocabularySlice& slice,
                           std::int64_t ignored, const Tensor& results, const Queue& queue);
// logits = (exp(logits - max) / sum - [column == label]) * grad, in place; max and sum are over all columns on all
// ranks.
void cross_entropy_backward(const Tensor& logits, const Tensor& labels, const VocabularySlice& slice,
                            std::int64_t ignored, const Tensor& max, const Tensor& sum, const Tensor& grad,
                            const Queue& queue);

// y[t] = weight[id - first]; zeros for ids of other slices, NaN for ids outside the vocabulary.
void embedding_forward(const Tensor& ids, const VocabularySlice& slice, const Tensor& weight, const Tensor& y,
                       const Queue& queue);
// sum[row] += the gradients of its tokens, added in order. The sum is float or of grad's type.
void embedding_backward(const Tensor& grad, const Tensor& ids, const VocabularySlice& slice, const Tensor& sum,
                        const Queue& queue);

// y[i] = there[numbers[i]], or elsewhere[i] where the number is negative; zeros in place of an absent matrix.
void pick_rows(const Tensor& numbers, const Tensor& there, const Tensor& elsewhere, const Tensor& y,
               const Queue& queue);

inline bool has_rotary(std::int64_t width) { return width > 0 && width <= 2048; }

// Rotates channels i and i + width / 2 by direction * position * theta^(-2i / width); the angle is computed in double.
// x, y: [tokens, heads, width] with contiguous channels, positions: [tokens]
void rotate(const Tensor& x, const Tensor& positions, double theta, double direction, const Tensor& y,
            const Queue& queue);

// Rows of values of a RandomField (base/philox.h): element [row][column] is value first + row * row_step + column.
struct RandomRows {
  std::uint64_t seed = 0, name_hash = 0, first = 0, row_step = 0;
};
// x = scale * normal, or scale * (2 * uniform - 1), in double and rounded to float and then to x's type: as on a CPU.
void draw(const Tensor& x, const RandomRows& values, bool normal, double scale, const Queue& queue);

// Rearrangements of the patches of images of any sizes, all images in one launch; see ops/vision.h. `images` are
// ImageOnDevice.
struct ImageOnDevice {
  std::int64_t first_patch, rows, columns;
};
// One token for each 2 x 2 square of patches, or back.   patches: [P, H], tokens: [P / 4, 4 H]
void join_squares(const Tensor& patches, const Tensor& images, const Tensor& tokens, const Queue& queue);
void split_squares(const Tensor& tokens, const Tensor& images, const Tensor& patches, const Queue& queue);

// For each image its class tokens, then its patches plus their positions in a square table that is resized bilinearly.
// patches: [P, H], table: [side * side, H], class_token: [C, H] -> tokens: [P + C * images, H]
void place_patches(const Tensor& patches, const Tensor& table, std::int64_t side, const Tensor& class_token,
                   const Tensor& images, const Tensor& tokens, const Queue& queue);
void place_patches_backward(const Tensor& grad, std::int64_t side, std::int64_t class_tokens, const Tensor& images,
                            const Tensor& patches_grad, const Tensor& table_grad, const Tensor& class_token_grad,
                            const Queue& queue);

}  // namespace braid::kernels
