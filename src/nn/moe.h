#pragma once

#include "comm/collectives.h"
#include "nn/config.h"
#include "nn/layer.h"
#include "nn/linear.h"
#include "ops/moe.h"
#include "tensor/copies.h"

namespace braid {

// How many rows of each expert the ranks send each other in each piece of their tokens. The all-to-all needs these
// numbers on the host. A layer that runs again in backward keeps them, because it chooses the same experts again.
struct ExpertCounts {
  at::Tensor incoming;           // [expt_tp * ep ranks, pieces, local experts], on the device; undefined: not known yet
  std::optional<HostCopy> both;  // the outgoing, [pieces, experts], and the incoming
};

// Sends rows to the ranks that hold their experts and the results back, for one batch of routed tokens.
//
// Rows start sorted by expert. They go to their expert's rank (all-to-all over ep with uneven counts), are shared by
// the ranks that split those experts' width (expt_tp), and are sorted by local expert. start_combine() does the
// reverse.
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
  void start(RowExchange& dispatch) const {
    if (ep_.size() > 1) dispatch.start(plan().rows_to, plan().rows_from);
  }
  Tensors await(RowExchange& dispatch) const;

  // [R', ...] partial sums over expt_tp -> [R, ...], which the RowExchange gives.
  RowExchange start_combine(const at::Tensor& rows, Result result = Result::Needed) const;

  bool is_local() const { return ep_.size() == 1 && expt_tp_.size() == 1; }  // rows stay where and as they are
  // Row counts of each local expert, after dispatch.
  const ExpertRows& local_rows() const { return plan().local_rows; }

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

struct MoeOptions {
  int experts = 1;
  RouterOptions router{};
  double aux_loss_coeff = 0;
  double expert_bias_rate = 0;
  bool force_load_balancing = false;
  double norm_eps = 1e-5;
};

// A mixture of experts with a shared expert. Every rank routes its own T / (cp tp) tokens, with or without sequence
// parallelism.
class Moe : public Layer {
 public:
  Moe(const MoeOptions& options, const Parameters& parameters, const std::string& prefix, const Parallel& parallel,
      const RecomputeConfig& recompute = {});
  at::Tensor branch(const Residual& x, const SequenceBatch& batch) override;

  // The unweighted auxiliary loss, this rank's share, summed over the forwards with gradient since the last call.
  // Summed over all shares, balanced routing gives 1 per forward, for any number of samples.
  at::Tensor take_aux_loss();

  // After a step: raises the expert bias of experts that got fewer tokens than the mean and lowers it for the others,
  // counted over `group` (all ranks with different tokens) since the last update. The counts of all layers, which have
  // the same number of experts, are one operation.
  static void update_expert_biases(const std::vector<Moe*>& layers, const Group& group);
  // Called instead after a skipped step: discards its counts.
  void forget_tokens() { tokens_per_expert_.zero_(); }

 private:
  // Some of a rank's tokens, one after the other, and the exchange of their rows. With other ranks and
  // OverlapConfig::expert_pieces there are several: the rows of one travel while the experts process another.
  struct Piece {
    ExpertOrder order;
    ExpertExchange exchange;
  };
  using Pieces = std::vector<Piece>;
  // A rank's tokens and the experts that were chosen for them.
  struct Routed {
    Recomputable tokens;
    Routing routing;
    std::shared_ptr<const Pieces> pieces;  // backward may need them after the forward
    bool fused;                            // one operator runs all experts; no rows travel
  };

  Routed route_tokens(const at::Tensor& logits, const Recomputable& tokens, const SequenceBatch& batch);
  // The experts' outputs, as sum_outputs() adds them up. `started`: the rows on their way, unless experts are fused or
  // recomputed.
  at::Tensor run_routed(const Routed& routed, std::vector<RowExchange>& started, const at::Tensor& added,
                        Result output) const;
  Pieces cut(const at::Tensor& experts, std::shared_ptr<ExpertCounts> counts) const;
  // The rows of these tokens, and each row's weight, ready to travel to their experts; of each piece.
  std::vector<RowExchange> prepare_rows(const at::Tensor& tokens, const at::Tensor& weights,
                                        const Pieces& pieces) const;
  static void start(std::vector<RowExchange>& rows, const Pieces& pieces);
  // The experts' outputs for the rows that have started, [T * k, H] sorted by expert; of each piece.
  Tensors run_experts(std::vector<RowExchange>& started, const Pieces& pieces, Result result) const;
  RowExchange run_experts(RowExchange& started, const Piece& piece, Result result) const;
  // The sum of each token's outputs and of its row of `added`, if that is defined.
  at::Tensor sum_outputs(const Tensors& outputs, const Pieces& pieces, const at::Tensor& added) const;
  at::Tensor with_aux_loss(const at::Tensor& y, const Routing& routing, const SequenceBatch& batch);
  at::Tensor aux_loss_of(const at::Tensor& scores, const SequenceBatch& batch) const;
  LogitsAndTokens logits_of(const Recomputable& x, std::size_t other_users);
  const at::Tensor& balanced_logits(std::int64_t tokens);

  const MoeOptions options_;
  const RecomputeConfig recompute_;
  const std::string prefix_;
  const Parameters& parameters_;
  const Parallel& parallel_;
  const int pieces_;
  const at::Tensor norm_;
  const Weight router_;
  const GroupedLinear fc1_, fc2_;
  std::optional<Linear> shared_fc1_, shared_fc2_;
  at::Tensor expert_bias_, tokens_per_expert_, aux_loss_sum_, balanced_logits_;
};

}  // namespace braid
