// Collectives that autograd can differentiate.
//
// The gradient of each is its transpose over all ranks: with L the sum of every rank's loss, backward gives
// each rank dL/d(its input). So all_reduce's backward is all_reduce, all_gather's reduce_scatter, broadcast's
// a sum at the root. A loss that every rank of a group computes alike is therefore counted once per rank;
// scale it by 1/size, or keep it on one rank. All ranks of a group must run backward through the same calls.
// Integer tensors pass without gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "dist/group.h"

namespace braid {

at::Tensor all_reduce(const at::Tensor& x, const Group& group);  // sum

at::Tensor all_gather(const at::Tensor& x, const Group& group,
                      std::int64_t dim = 0);  // concatenates along dim
at::Tensor reduce_scatter(const at::Tensor& x, const Group& group,
                          std::int64_t dim = 0);  // sum, split evenly along dim

// Rows (dim 0) of x go to the ranks in order, rows_to[r] of them to rank r. How many come from each is agreed
// on first.
at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& rows_to, const Group& group);

// The same where the rows that come are known already.
at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& rows_to,
                      const std::vector<std::int64_t>& rows_from, const Group& group);

// Of the root's x. Elsewhere x has the same shape and dtype, wants a gradient where the root's does, and is not read.
at::Tensor broadcast(const at::Tensor& x, int root, const Group& group);

}  // namespace braid
