// Sends rows to the ranks that hold their experts and the results back, for one batch of routed tokens.
//
// Rows start sorted by expert. They go to their expert's rank (all-to-all over ep with uneven counts), are shared by
// the ranks that split those experts' width (expt_tp), and are sorted by local expert. start_combine() does the
// reverse.
#pragma once

#include <memory>
#include <optional>

#include "comm/collectives.h"
#include "ops/grouped_linear.h"
#include "ops/moe.h"
#include "tensor/copies.h"

namespace braid {

// How many rows of each expert the ranks send each other in each piece of their tokens. The all-to-all needs these
// numbers on the host. A layer that runs again in backward keeps them, because it chooses the same experts again.
struct ExpertCounts {
  at::Tensor incoming;           // [expt_tp * ep ranks, pieces, local experts], on the device; undefined: not known yet
  std::optional<HostCopy> both;  // the outgoing, [pieces, experts], and the incoming
};

class ExpertExchange {
 public:
  // orders: this rank's rows for each expert, of each piece of its tokens; all ranks have as many. Collective over ep
  // and expt_tp: every rank learns how many rows it will receive, of all pieces in one operation and one copy to the
  // host, which waits for these numbers only in start(). `kept` keeps them for a second exchange of the same rows.
  // Without other ranks nothing leaves the device.
  static std::vector<ExpertExchange> of_pieces(const std::vector<ExpertOrder>& orders, const Group& ep,
                                               const Group& expt_tp, std::shared_ptr<ExpertCounts> kept = nullptr);

  // Tensors of R rows sorted by expert -> tensors of R' rows sorted by local expert, in the steps of a RowExchange.
  RowExchange prepare_dispatch(const Tensors& rows) const { return RowExchange(rows, ep_); }
  void start(RowExchange& dispatch) const;
  Tensors await(RowExchange& dispatch) const;

  // [R', ...] partial sums over expt_tp -> [R, ...], which the RowExchange gives.
  RowExchange start_combine(const at::Tensor& rows, Result result = Result::Needed) const;

  bool is_local() const { return ep_.size() == 1 && expt_tp_.size() == 1; }  // rows stay where and as they are
  const ExpertRows& local_rows() const;  // row counts of each local expert, after dispatch

 private:
  ExpertExchange(const ExpertOrder& order, std::int64_t piece, const Group& ep, const Group& expt_tp,
                 std::shared_ptr<ExpertCounts> counts);

  struct Plan {
    std::vector<std::int64_t> rows_to{}, rows_from{};  // per ep rank
    std::vector<std::int64_t> rows_of{};               // per expt_tp rank: the rows it received over ep
    ExpertRows local_rows{};
    at::Tensor by_expert{}, by_source{};  // row order from (expt_tp rank, ep rank, expert) to (expert, ...), and back
  };
  const Plan& plan() const;  // waits for the counts
  Plan make_plan() const;

  std::int64_t piece_;
  Group ep_, expt_tp_;
  std::shared_ptr<ExpertCounts> counts_;
  mutable std::optional<Plan> plan_;
};

}  // namespace braid
