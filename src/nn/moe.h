#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "nn/config.h"
#include "nn/expert_exchange.h"
#include "nn/layer.h"
#include "nn/linear.h"
#include "ops/moe.h"

namespace braid {

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
  void forget_tokens();

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
