// Sends rows to the ranks that hold their experts and the results back, for one batch of routed tokens.
//
// Rows start sorted by expert. They go to their expert's rank (all-to-all over ep with uneven counts), are shared by
// the ranks that split those experts' width (expt_tp), and are sorted by local expert. combine() does the reverse.
#pragma once

#include "dist/collectives.h"
#include "ops/grouped_linear.h"
#include "ops/moe.h"

namespace braid {

class ExpertExchange {
 public:
  // order: this rank's rows for each expert. Collective over ep and expt_tp: every rank learns how many rows it will
  // receive. Without other ranks the row counts stay on the device.
  ExpertExchange(const ExpertOrder& order, const Group& ep, const Group& expt_tp);

  // [R, ...] sorted by expert -> [R', ...] sorted by local expert, from the result, which must not outlive this object.
  // What runs before it is called overlaps with the all-to-all over ep.
  AwaitRows start_dispatch(const at::Tensor& rows) const;
  at::Tensor combine(const at::Tensor& rows) const;  // [R', ...] partial sums over expt_tp -> [R, ...]

  bool is_local() const { return ep_.size() == 1 && expt_tp_.size() == 1; }  // rows stay where and as they are
  const ExpertRows& local_rows() const { return local_rows_; }  // row counts of each local expert, after dispatch

 private:
  at::Tensor share_and_sort(at::Tensor x) const;

  Group ep_, expt_tp_;
  std::vector<std::int64_t> rows_to_, rows_from_;  // per ep rank
  std::vector<std::int64_t> rows_of_;              // per expt_tp rank: the rows it received over ep
  ExpertRows local_rows_;
  at::Tensor by_expert_, by_source_;  // row order from (expt_tp rank, ep rank, expert) to (expert, ...), and back
};

}  // namespace braid
