// Collectives that autograd can differentiate.
//
// The gradient of each is its transpose over all ranks: with L the sum of every rank's loss, backward gives each rank
// dL/d(its input). So the backward of all_reduce is all_reduce, of all_gather reduce_scatter, of broadcast a sum at the
// root. A loss that every rank of a group computes identically is therefore counted once per rank: scale it by 1/size,
// or keep it on one rank. All ranks of a group must run backward through the same calls. Integer tensors have no
// gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include "comm/group.h"
#include "tensor/autograd.h"

namespace braid {

at::Tensor all_reduce(const at::Tensor& x, const Group& group, Result result = Result::Needed);  // sum

at::Tensor all_gather(const at::Tensor& x, const Group& group, std::int64_t dim = 0,
                      Result result = Result::Needed);  // concatenates along dim
at::Tensor reduce_scatter(const at::Tensor& x, const Group& group, std::int64_t dim = 0,
                          Result result = Result::Needed);  // sum, split evenly along dim

// Sends the rows (dim 0) of x to the ranks in order, rows_to[r] of them to rank r, and receives rows_from[r] from it.
at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& rows_to,
                      const std::vector<std::int64_t>& rows_from, const Group& group, Result result = Result::Needed);

// An all_to_all of several tensors with the same rows, as one operation, which overlaps with other work:
//
//   RowExchange rows(tensors, group);
//   ...                                  // overlaps in backward, with the exchange of the gradients
//   rows.start(rows_to, rows_from);
//   ...                                  // overlaps in forward and in backward
//   received = rows.await();
//
// Among the operations that are ready, autograd runs the one of the latest forward first. So it starts the exchange of
// the gradients where forward awaited, runs the backward of what came in between, and waits where forward made the
// object. The order is the same on all ranks if their forwards are.
class RowExchange {
 public:
  RowExchange(const std::vector<at::Tensor>& rows, const Group& group);
  void start(const std::vector<std::int64_t>& rows_to, const std::vector<std::int64_t>& rows_from,
             Result result = Result::Needed);
  std::vector<at::Tensor> await();  // once

 private:
  struct Exchange;
  std::vector<at::Tensor> sent_;
  std::shared_ptr<Exchange> exchange_;  // none in a group of one
};

// Broadcasts the root's x. On other ranks x has the same shape and dtype, requires a gradient iff the root's does, and
// is overwritten. A contiguous x and the result share memory, which must not be written.
at::Tensor broadcast(const at::Tensor& x, int root, const Group& group);

// The same, overlapping with what runs between the constructor and await(), as in RowExchange.
class Broadcast {
 public:
  Broadcast(const at::Tensor& x, int root, const Group& group);
  at::Tensor await();  // once

 private:
  struct Flight;
  at::Tensor source_;
  std::shared_ptr<Flight> flight_;  // none in a group of one
};

}  // namespace braid
