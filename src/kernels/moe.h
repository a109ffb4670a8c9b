// A mixture of experts: the router, the choice of experts and the loss that balances it, the rows of tokens in the
// order of their experts, and the products of experts with their rows, of bf16 or fp8. T tokens choose k of E experts
// each: slot t * k + j is the j-th choice of token t, R = T * k slots in all. H features. Expert e has rows ends[e - 1]
// to ends[e], which may be none.
#pragma once

#include "kernels/tensor.h"

namespace braid::kernels {

// The products of the router, bf16 tokens times fp32 or bf16 weights, at the precision of fp32 on tensor cores: an fp32
// number is the sum of three bf16 numbers. The gradient of the tokens is bf16, so it needs only the two largest.

// logits = x weight^T.   x: [T, H], weight: [E, H], logits: [T, E]
void router_logits(const Tensor& x, const Tensor& weight, const Tensor& logits, const Queue& queue);
// x_grad = grad weight + `added` + `more`, the gradients that the other users of x have for it, rounded once.
// grad: [T, E]
constexpr int kMostAdded = 2;
void router_logits_x_grad(const Tensor& grad, const Tensor& weight, const Tensor& added, const Tensor& more,
                          const Tensor& x_grad, const Queue& queue);
// grad^T x, written to weight_grad, or added to it.   weight_grad: [E, H]
void router_logits_weight_grad(const Tensor& grad, const Tensor& x, const Tensor& weight_grad, bool add,
                               const Queue& queue);

inline constexpr std::int64_t kMaxRoutedExperts = 512, kMaxTopK = 32;

struct RouteWeights {
  float scaling = 1;
  bool normalize = true;
  float never_zero = 0;  // is added to a sum of scores that divides
};

// scores = sigmoid(logits); the top_k of scores + bias, best first, equals by index; their scores, divided by their sum
// if `normalize`, times `scaling`.   scores: [T, E], experts and weights: [T, k]
void route(const Tensor& logits, const Tensor& bias, const RouteWeights& options, const Tensor& scores,
           const Tensor& experts, const Tensor& weights, const Queue& queue);
void route_backward(const Tensor& scores_grad, const Tensor& weights_grad, const Tensor& scores, const Tensor& experts,
                    const RouteWeights& options, const Tensor& logits_grad, const Queue& queue);

// The tokens of these kernels are a part of `count` samples of `length` tokens each, and begin with token `first`.
struct Samples {
  std::int64_t first = 0, length = 0, count = 0;
};

// With the shares of a token its scores divided by their sum: for each sample and expert the sum of its tokens' shares,
// and how many of its tokens have the expert among their top_k.   sums: [2, samples, E], first shares, then counts
void expert_shares(const Tensor& scores, std::int64_t top_k, const Samples& samples, float never_zero,
                   const Tensor& sums, const Queue& queue);
// result[0] = factor times the sum over all elements of a * b.
void scaled_dot(const Tensor& a, const Tensor& b, float factor, const Tensor& result, const Queue& queue);
// The gradient of scores if that of a share is chosen[sample, expert] * factor * grad[0].
void expert_shares_backward(const Tensor& grad, const Tensor& chosen, const Tensor& scores, const Samples& samples,
                            float factor, float never_zero, const Tensor& scores_grad, const Queue& queue);

inline constexpr std::int64_t kMaxSortedExperts = 1024;

// The stable sort of slots by expert: the slot of each row, the row of each slot, and how many rows each expert has.
// experts, order, inverse: [R], counts, ends: [E]
void sort_by_expert(const Tensor& experts, const Tensor& order, const Tensor& inverse, const Tensor& counts,
                    const Tensor& ends, const Queue& queue);

// rows[inverse[t * k + j]] = x[t].   rows: [R, H]
void permute_to_experts(const Tensor& x, const Tensor& inverse, std::int64_t top_k, const Tensor& rows,
                        const Queue& queue);
// y[t] = the sum over j of rows[inverse[t * k + j]], plus added[t] if there is such a matrix; rounded once.
void unpermute_from_experts(const Tensor& rows, const Tensor& inverse, std::int64_t top_k, const Tensor& added,
                            const Tensor& y, const Queue& queue);

// grad = 0 for experts without rows, whose gradients a grouped product may leave undefined.   grad: [E, Out, In]
void clear_gradients(const Tensor& ends, const Tensor& grad, const Queue& queue);

// Whether the current device is a Hopper GPU and this program was compiled for it. Matrices must start at multiples of
// 16 bytes, and columns and strides must be multiples of 8 elements; there must be an expert, a row and a column.
bool has_grouped_products();

// The rows of each expert times its matrix, which is transposed or not.
// rows: [R, K], matrices: [E, N, K] if transposed, else [E, K, N] -> result: [R, N]
void multiply_rows(const Tensor& rows, const Tensor& ends, const Tensor& matrices, bool transposed,
                   const Tensor& result, const Queue& queue);
// left^T right over the rows of each expert, added to the result or written over it. The result is float, or bf16,
// which is always overwritten.   left: [R, M], right: [R, N], result: [E, M, N]
void multiply_columns(const Tensor& left, const Tensor& right, const Tensor& ends, const Tensor& result, bool overwrite,
                      const Queue& queue);

// Matrices in e4m3 (fp8: 3 bits of mantissa, up to 448) with a scale for each row: an element is its value times the
// scale of its row, which is the row's largest magnitude over 448. A row whose magnitudes are all below 1e-30 is zero
// and has the scale 1. Values are rounded to the nearest.
struct Fp8Matrices {
  Tensor values, scales;
};

// The same products in fp8. Rows are contiguous, in multiples of 16 elements.
// rows: [R, K], matrices: [E, N, K] -> result: [R, N]; N is a multiple of 16. The tensor core adds with 13 bits.
void multiply_fp8_rows(const Fp8Matrices& rows, const Tensor& ends, const Fp8Matrices& matrices, const Tensor& result,
                       const Queue& queue);
// left right^T over the columns of each expert, which end at multiples of kGroupMultiple. Sums move from the tensor
// core to fp32 every 128 terms.   left: [M, L], right: [N, L], result: [E, M, N]
void multiply_fp8_columns(const Fp8Matrices& left, const Fp8Matrices& right, const Tensor& padded_ends,
                          const Tensor& result, bool overwrite, const Queue& queue);

// In a transposed matrix of experts' rows each expert begins at a multiple of this: the gap before the next one is
// filled with zeros, and the experts' rows end at padded_ends.
inline constexpr std::int64_t kGroupMultiple = 32;
void pad_ends(const Tensor& ends, const Tensor& padded_ends, const Queue& queue);

inline constexpr std::int64_t kMostQuantizedColumns = 32768;

// The forms of a matrix [R, C], either of which may be absent. In all functions below rows in memory are aligned to 16
// bytes, C is a multiple of 8 and at most kMostQuantizedColumns.
struct QuantizedForms {
  Fp8Matrices rows;     // values [R, C], scales [R]
  Fp8Matrices columns;  // transposed: values [C, length], zero from R on, scales [C]; length is a multiple of 16,
                        // and large enough for the groups' padding
  Tensor ends{}, padded_ends{};  // of experts; absent: all rows are one group
};

// x holds `batches` matrices of equal size, one below the other: [batches * R, C]. If there are several, R is a
// multiple of 16. Forms follow each other in the same way: columns are [batches, C, length].
void quantize(const Tensor& x, std::int64_t batches, const QuantizedForms& forms, const Queue& queue);
// The rows of tokens in the order of their experts: row r is x[order[r] / k]. Every token is converted once.   x: [T,
// C]
void quantize_permuted(const Tensor& x, const Tensor& order, const Tensor& inverse, std::int64_t top_k,
                       const QuantizedForms& forms, const Queue& queue);
// max(x, 0)^2 * scale[row], rounded to bf16 and then to fp8.
void quantize_scaled_squared_relu(const Tensor& x, const Tensor& scale, const QuantizedForms& forms,
                                  const Queue& queue);
// 2 max(x, 0) grad scale, rounded to bf16 and then to fp8; scale_grad[row] = the row's sum of max(x, 0)^2 grad, which
// may be absent.
void quantize_scaled_squared_relu_backward(const Tensor& grad, const Tensor& x, const Tensor& scale,
                                           const Tensor& scale_grad, const QuantizedForms& forms, const Queue& queue);

}  // namespace braid::kernels
