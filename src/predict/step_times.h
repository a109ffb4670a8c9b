// Predicts the time of each op of a step on each rank that is played, and of each transfer between them.
#pragma once

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "plan/schedule.h"
#include "predict/op_time.h"
#include "predict/reduced_world.h"
#include "run/step_sizes.h"

namespace braid {

// Times of the optimizer. They do not depend on the sizes of microbatches, so they are the same in all steps.
class OptimizerTimes {
 public:
  OptimizerTimes(const ReducedWorld& world, const StepSetup& setup, const HardwareProfile& hardware)
      : world_(world), setup_(setup), hardware_(hardware) {}

  struct OfStage {
    struct Bucket {
      double completed;  // the share of the stage's backward after which its gradients are complete
      double seconds;    // duration of its reduction
    };
    std::vector<Bucket> reductions{};  // in order
    double gathers = 0;                // seconds
    double last_gathered = 0;          // the last gathered bucket's share of the stage's parameters
    OpTime replica_sums{};
  };
  const OfStage& of_stage(const Stage& stage);

  double update_of(int module, int rank);  // seconds to update the module's parameters, without communication

 private:
  const ReducedWorld& world_;
  const StepSetup& setup_;
  const HardwareProfile& hardware_;
  std::map<std::pair<int, int>, OfStage> stages_;               // by module and stage
  std::map<std::vector<std::pair<int, int>>, double> updates_;  // by the stages of a module that a rank has
};

struct ForwardBackward {
  OpTime forward, backward;
};
// The times of a layer in the first microbatch of a step or in a later one.
ForwardBackward layer_times(const PaperLayer& layer, const LayerOptions& options, bool is_first, GroupTimes& groups,
                            const HardwareProfile& hardware);

class StepTimes {
 public:
  // `sizes` are those of the small world. All arguments must outlive this object.
  StepTimes(const ReducedWorld& world, const StepSetup& setup, const ScheduleOptions& options, const StepSizes& sizes,
            const HardwareProfile& hardware, OptimizerTimes& optimizers);

  // The time of an op that occupies the rank, rather than running beside its ops.
  OpTime of_op(int rank, const Op& op);
  // The part of the update that concerns one of the rank's modules.
  OpTime of_update(int module, int rank);
  // The time of a gather or reduction from its start until the op that ends it can finish. If it overlaps bucket by
  // bucket with a forward or backward, their waiting for each other is included.
  double of_collective(int rank, const Op& op);
  // The same without the waiting for layers.
  double messages_of_collective(const Op& op);
  double of_transfer(const Edge& edge, int microbatch) const;

 private:
  using Times = ForwardBackward;
  const Times& stage_times(const Stage& stage, int rank, int microbatch);
  Times compute_stage_times(const RankStep& step, const Stage& stage, int full_rank, int microbatch);
  RankStep step_of(int module, int rank) const;
  GroupTimes& groups_of(int module, int full_rank);
  int full_rank(int module, int rank) const { return world_.full_rank(module, rank); }
  const Module& module(int m) const { return world_.modules[m]; }

  const ReducedWorld& world_;
  const StepSetup& setup_;
  const ScheduleOptions& options_;
  const StepSizes& sizes_;
  const HardwareProfile& hardware_;
  OptimizerTimes& optimizers_;
  std::vector<int> sends_, receives_;                         // by rank: edges between modules
  std::map<std::pair<int, int>, GroupTimes> groups_;          // by module and the rank's place in its replica
  std::map<std::vector<std::int64_t>, Times> by_size_;        // by stage and the sizes of its input
  std::map<std::array<int, 4>, const Times*> by_microbatch_;  // by stage, replica and microbatch
};

}  // namespace braid
