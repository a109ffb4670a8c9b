// Collectives that autograd can differentiate.
//
// The gradient of each is its transpose over all ranks: with L the sum of every rank's loss, backward gives each rank
// dL/d(its input). So the backward of all_reduce is all_reduce, of all_gather reduce_scatter, of broadcast a sum at the
// root. A loss that every rank of a group computes identically is therefore counted once per rank: scale it by 1/size,
// or keep it on one rank. All ranks of a group must run backward through the same calls. Integer tensors have no
// gradients.
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

// Sends the rows (dim 0) of x to the ranks in order, rows_to[r] of them to rank r. The ranks first exchange how many
// rows each will receive.
at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& rows_to, const Group& group);

// The same where the numbers of received rows are already known.
at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& rows_to,
                      const std::vector<std::int64_t>& rows_from, const Group& group);

// Broadcasts the root's x. On other ranks x has the same shape and dtype, requires a gradient iff the root's does, and
// is not read.
at::Tensor broadcast(const at::Tensor& x, int root, const Group& group);

}  // namespace braid
