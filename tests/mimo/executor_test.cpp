// Transfers of different channels do not wait for each other. What ranks compute in all layouts is tested in
// layouts_test.cpp.
#include "mimo/executor.h"
#include <ATen/ATen.h>
#include <future>
#include <gtest/gtest.h>
#include "base/error.h"
#include "comm/world.h"
#include "support/grid_sizes.h"
#include "support/ranks.h"

namespace braid {
namespace {

// Every stage adds 1 to its input, and the encoder makes an input of the microbatch's number.
class Adds : public StageWork {
 public:
  explicit Adds(std::function<void(const Stage&, int microbatch)> before_forward)
      : before_forward_(std::move(before_forward)) {}

  void load(const Stage&, int) override {}
  at::Tensor forward(const Stage& stage, int microbatch, const std::vector<at::Tensor>& inputs) override {
    before_forward_(stage, microbatch);
    return (inputs.empty() ? at::full({2, 3}, microbatch, at::kDouble) : inputs.at(0)) + 1;
  }
  at::Tensor gradient_of_last(int, const at::Tensor& output) override { return at::ones_like(output); }
  EdgeRows rows_over(int, int) const override { return {0, 2, 3}; }

 private:
  const std::function<void(const Stage&, int)> before_forward_;
};

// Rank 0 has the encoder, ranks 1 and 2 the stages of the language model. Rank 1 posts the receive of the second
// microbatch's embeddings before its first forward. The encoder computes them only after rank 2 has begun its first
// forward, for which rank 1 must have sent the result of its own, behind the receive that waits.
TEST(Executor, AReceiveThatWaitsDoesNotHoldBackASendToAnotherRank) {
  const Topology topology({.modules = {testing::module_of("images", ModuleKind::Encoder, {}),
                                       testing::module_of("language", ModuleKind::Language, {.pp = 2})}},
                          {.micro_batch = 1, .global_batch = 2});
  const StepPlan plan(topology, {.microbatches = 2, .forward_only = true});
  const auto& of_rank_1 = plan.schedule.ranks[1];
  const auto first_forward =
      std::find_if(of_rank_1.begin(), of_rank_1.end(), [](const Op& op) { return op.kind == Op::Forward; });
  ASSERT_TRUE(std::any_of(of_rank_1.begin(), first_forward, [](const Op& op) {
    return op.kind == Op::Exchange && op.transfers[0].microbatch == 1 && !op.transfers[0].outgoing;
  }));
  std::promise<void> rank_2_computes;
  std::shared_future<void> told = rank_2_computes.get_future();
  testing::on_threads(
      3,
      [&](World& world) {
        const Groups groups(world, topology);
        Adds work([&](const Stage& stage, int microbatch) {
          if (world.rank() == 2 && microbatch == 0) rank_2_computes.set_value();
          const bool waits = stage.module == 0 && microbatch == 1;
          BRAID_CHECK(!waits || told.wait_for(std::chrono::seconds(60)) == std::future_status::ready,
                      "rank 1's send is held back");
        });
        Executor executor(plan, topology, groups, at::TensorOptions(at::kDouble), work);
        for (const Op& op : plan.schedule.ranks[static_cast<std::size_t>(world.rank())]) executor.run(op);
        executor.finish();
      },
      ThreadSemantics::Strict);
}

}  // namespace
}  // namespace braid
