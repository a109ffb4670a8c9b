#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/embedding.h"
#include "ops/kernel_call.h"
#include "ops/rows.h"

namespace braid::cuda {
namespace {

// `ids` must be contiguous; `rows` of the vocabulary are in the shard.
kernels::Ids ids_of(const at::Tensor& ids, std::int64_t rows, const VocabularyShard& shard) {
  return {data<std::int64_t>(ids), ids.size(0), shard.index * rows, shard.count * rows};
}

// sum[row of an id] += its token's gradient, with the same bits in every run. `sum` is float or of grad's dtype.
void add_gradient(const at::Tensor& grad, const at::Tensor& ids, const VocabularyShard& shard, const at::Tensor& sum) {
  const std::int64_t tokens = ids.size(0), rows = sum.size(0);
  if (tokens == 0) return;
  const at::Tensor dense_ids = ids.contiguous(), dense_grad = with_dense_rows(grad);
  const auto make = [&](at::IntArrayRef shape, at::ScalarType dtype) {
    return at::empty(shape, grad.options().dtype(dtype));
  };
  const at::Tensor sorted = make({2, tokens}, at::kInt);
  const at::Tensor scratch = make({static_cast<std::int64_t>(kernels::sort_scratch_bytes(tokens))}, at::kByte);
  const at::Tensor partial = make({kernels::partial_row_sums(tokens), sum.size(1)}, at::kFloat);
  const kernels::TokensByRow by_row = {data<std::uint32_t>(sorted), data<std::uint32_t>(sorted[1])};
  call_kernel(grad, [&]<class T>(cudaStream_t stream) {
    kernels::sort_by_row(ids_of(dense_ids, rows, shard), rows, by_row, scratch.data_ptr(), stream);
    const auto add = [&]<class Sum>(const kernels::Matrix<Sum>& to) {
      kernels::add_to_rows<T, Sum>(matrix<const T>(dense_grad), by_row, to, data<float>(partial), stream);
    };
    sum.scalar_type() == at::kFloat ? add(matrix<float>(sum)) : add(matrix<T>(sum));
  });
}

}  // namespace

at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& weight, const VocabularyShard& shard) {
  const at::Tensor dense_ids = ids.contiguous(), y = at::empty({ids.size(0), weight.size(1)}, weight.options());
  call_kernel(weight, [&]<class T>(cudaStream_t stream) {
    kernels::embedding_forward<T>(ids_of(dense_ids, weight.size(0), shard), matrix<const T>(weight), matrix<T>(y),
                                  stream);
  });
  return y;
}

at::Tensor embedding_backward(const at::Tensor& grad, const at::Tensor& ids, const Weight& weight,
                              const VocabularyShard& shard) {
  const auto add = [&](const at::Tensor& sum) { add_gradient(grad, ids, shard, sum); };
  if (weight.sum->add_by(add)) return {};
  const at::Tensor gradient = at::zeros_like(weight.value);
  add(gradient);
  return gradient;
}

namespace {

// Row i is there[numbers[i]], or elsewhere[i] where the number is negative; of an undefined tensor, zeros.
at::Tensor pick_rows(const at::Tensor& numbers, const at::Tensor& there, const at::Tensor& elsewhere) {
  const at::Tensor dense_numbers = numbers.contiguous(), numbered = with_dense_rows(there),
                   others = with_dense_rows(elsewhere);
  const at::Tensor& like = there.defined() ? there : elsewhere;
  const at::Tensor y = at::empty({numbers.size(0), like.size(1)}, like.options().requires_grad(false));
  call_kernel(like, [&]<class T>(cudaStream_t stream) {
    kernels::pick_rows(data<const std::int64_t>(dense_numbers), const_matrix<T>(numbered), const_matrix<T>(others),
                       matrix<T>(y), stream);
  });
  return y;
}

}  // namespace

at::Tensor put_rows_forward(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& row_of) {
  return pick_rows(row_of, rows, x);
}

Tensors put_rows_backward(const at::Tensor& grad, const RowPlaces& places, const PutRowsNeeds& needs) {
  return {needs.x_grad ? pick_rows(places.row_of, {}, grad) : at::Tensor(),
          needs.rows_grad ? pick_rows(places.place_of, grad, {}) : at::Tensor()};
}

}  // namespace braid::cuda
