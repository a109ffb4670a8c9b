// Runs a rank's ops of a schedule, independently of what its stages compute. Each exchange is started over its channel
// at its position in the list, and awaited where its tensors are read. A tensor that a stage receives over an edge is a
// leaf of this rank's autograd graph; its gradient is sent back over the edge.
#pragma once

#include <ATen/core/Tensor.h>
#include "comm/group.h"
#include "plan/channels.h"
#include "plan/schedule.h"

namespace braid {

class Groups;

// The rows of a stage's output that are sent over an edge.
struct EdgeRows {
  std::int64_t begin = 0, rows = 0, width = 0;
};

// The computation of this rank's stages.
class StageWork {
 public:
  virtual ~StageWork() = default;
  virtual void load(const Stage& stage, int microbatch) = 0;
  // `inputs` are the tensors of edges_into() the stage on this rank. The output is sent over the edges from the stage,
  // except that of the very last stage, which may be any tensor.
  virtual at::Tensor forward(const Stage& stage, int microbatch, const std::vector<at::Tensor>& inputs) = 0;
  // The gradient with which backward starts on the very last stage.
  virtual at::Tensor gradient_of_last(int microbatch, const at::Tensor& output) = 0;
  // Known at both ends of an edge.
  virtual EdgeRows rows_over(int edge, int microbatch) const = 0;
};

class Executor {
 public:
  // All arguments must outlive this object. `tensors` are the options of the tensors sent over edges.
  Executor(const StepPlan& plan, const Topology& topology, const Groups& groups, const at::TensorOptions& tensors,
           StageWork& work);

  // Runs a Begin, Load, Forward, Backward or Exchange. Begin does nothing, because StageWork knows the sizes of
  // microbatches.
  void run(const Op& op);
  // Waits for the inputs of a Forward or Backward, as run() does, too.
  void await(const Op& op) { await(state(op.stage, op.microbatch)); }
  void finish();  // returns when everything sent has been received

 private:
  // The tensors of one exchange in flight.
  struct Moving {
    std::vector<at::Tensor> tensors;
    Pending pending;
  };

  // A microbatch in a stage, from its first input to its last output.
  struct State {
    std::vector<std::shared_ptr<Moving>> arriving{};  // exchanges of inputs, or of the gradient of the output
    std::vector<at::Tensor> inputs{};                 // by edge into the stage; after backward, their gradients
    at::Tensor output{}, output_grad{};
    std::size_t uses_left = 0;  // edges over which the output has not been sent yet
  };
  struct LocalStage {
    Stage stage;
    std::vector<int> into, from;  // edges that end and begin here
    std::vector<State> states;    // by microbatch
  };

  struct ChannelState {
    Group group;
    std::deque<std::shared_ptr<Moving>> sending{};  // oldest first
  };

  void forward(const Op& op);
  void backward(const Op& op);
  void exchange(const std::vector<Transfer>& transfers);

  LocalStage& local_stage(const Stage& stage);
  State& state(const Stage& stage, int microbatch) { return local_stage(stage).states[microbatch]; }
  at::Tensor& input_over(int edge, int microbatch);
  const Edge& edge(int e) const { return plan_.edges[static_cast<std::size_t>(e)]; }
  bool is_within(int e) const { return edge(e).from_rank == rank_ && edge(e).to_rank == rank_; }
  bool is_trained(const Stage& stage) const { return braid::is_trained(topology_, plan_.options, stage); }
  void await(State& state);
  // The slice of the sender's output for an edge, detached.
  at::Tensor output_over(int e, int microbatch) {
    const EdgeRows rows = work_.rows_over(e, microbatch);
    return state(edge(e).from, microbatch).output.detach().narrow(0, rows.begin, rows.rows);
  }
  at::Tensor output_grad_over(int edge, int microbatch);
  at::Tensor sent(const Transfer& t) {
    return (t.kind == Transfer::Gradient ? input_over(t.edge, t.microbatch) : output_over(t.edge, t.microbatch))
        .contiguous();
  }
  at::Tensor tensor_to_fill(const Transfer& t, const std::shared_ptr<Moving>& moving);
  void count_use(int e, int microbatch) {
    State& from = state(edge(e).from, microbatch);
    if (--from.uses_left == 0 && !is_trained(edge(e).from)) from.output.reset();
  }

  const StepPlan& plan_;
  const Topology& topology_;
  const int rank_;
  const at::TensorOptions tensors_;
  StageWork& work_;
  std::vector<LocalStage> stages_;
  std::map<Channel, ChannelState> channels_;  // of this rank
};

}  // namespace braid
