// The sizes of a step's microbatches, and what a rank computes and communicates with them. No libtorch.
#pragma once

#include "comm/progress.h"
#include "optim/optimizer_config.h"
#include "optim/parameter_parts.h"
#include "paper/stage.h"
#include "plan/op.h"
#include "plan/pipeline.h"
#include "plan/schedule.h"
#include "run/recipe.h"

namespace braid {

// The microbatches of a step.
struct StepSizes {
  struct Text {
    std::int64_t tokens = 0, sequences = 1;
    std::vector<std::int64_t> labels{};  // labels that count, by cp rank
    double squares = 0;                  // sum of the squares of the sequences' lengths
  };
  using Extents = std::vector<std::vector<std::int64_t>>;  // by item, see models/providers.h

  std::vector<std::vector<Text>> text{};  // by microbatch and language replica
  std::vector<std::vector<std::vector<Extents>>>
      media{};                              // by module, microbatch and sample; none of the language model
  std::vector<std::int64_t> value_bytes{};  // by module: bytes of each number of its media, as read
};

struct StepSetup {
  Provider model{};
  OptimizerConfig optimizer{};
  std::vector<std::string> frozen{};  // parameter sets
  LayerOptions layers{};
  int micro_batch = 1;
};

StepSetup step_setup(const Recipe& recipe);
ScheduleOptions schedule_options_of(const Recipe& recipe, const Topology& topology);
// The step in which every sample fills its sequence, every token has a label, and the number and sizes of media are the
// largest that mock samples may have.
StepSizes full_step(const Recipe& recipe, const Topology& topology);

// The encoder that a module of the topology runs.
inline const EncoderConfig& encoder_of(const Provider& provider, const Module& module) {
  return encoder_named(provider, module.name);
}

// A parameter set of a module, as it is declared.
struct DeclaredSet {
  std::vector<ParamSpec> specs{};
  bool trains = true;
};
std::vector<DeclaredSet> declared_sets(const StepSetup& setup, const Module& module);

// What one rank computes and communicates in each op of a training step: the calls of the executor, the layers and the
// optimizer, with their sizes. step_traffic() sums up the bytes, predict/simulate.h the time, predict/memory.h the
// memory. Only the modules' grids are needed, not process groups, so a rank costs the same in a large world as in a
// small one.
class RankStep {
 public:
  // `modules`: of the whole world; `sizes`: of the replicas of this rank and of its peers. All must outlive this
  // object.
  RankStep(const StepSetup& setup, const std::vector<Module>& modules, const ScheduleOptions& options,
           const StepSizes& sizes, int global_rank);

  // --- modules

  int modules() const { return static_cast<int>(modules_.size()); }
  const Module& module(int m) const { return modules_[static_cast<std::size_t>(m)]; }
  int language() const { return language_; }
  const EncoderConfig& encoder(int m) const { return encoder_of(setup_.model, module(m)); }

  // --- a microbatch of the rank's replica

  TextSizes text(int microbatch) const;
  StepSizes::Extents extents(int m, int microbatch) const;  // of the encoder's items
  std::int64_t media_bytes(int m, int microbatch) const;    // of these items, as they are read
  // Includes operators that run only in the first microbatch of a step, or only in later ones (in_microbatch()).
  StageOnPaper walk(const Stage& stage, int microbatch) const;

  // --- ops of stages

  // The leader broadcasts the values of media to the ranks of its stage, which already have the text.
  Collectives load(const Stage& stage, int microbatch) const;
  // The sizes that determine walk(): equal for microbatches that a stage treats alike.
  std::vector<std::int64_t> input_sizes(const Stage& stage, int microbatch) const;
  // On the first language stage, the leader of a replica shares embeddings, and sums up their gradients.
  Collectives shared_embeddings(const Stage& stage, int microbatch, bool is_forward) const;
  std::int64_t transfer_bytes(const Edge& edge, int microbatch) const;

  // --- the update

  std::int64_t agreed_bytes() const;  // of the all-reduce over the world
  // The update of a module; at the end of a step, the ranks of a replica share the batches of the `next` one.
  Collectives update(int module, const StepSizes& next) const;

 private:
  bool trains(const std::string& set) const { return !contains(setup_.frozen, set); }
  const StepSizes::Text& replica_text(int microbatch) const {
    return sizes_.text[index(microbatch)][index(module(language_).dense.coord(rank_, "dp"))];
  }
  SampleRange samples_of(int m, int global_rank) const { return samples_of_replica(module(m), samples_, global_rank); }
  std::int64_t embeddings(int m, int microbatch, const SampleRange& samples) const;  // rows that the encoder produces
  // Of one row.
  std::int64_t embedding_bytes() const { return hidden_of(setup_.model.language) * setup_.layers.element_bytes; }
  std::int64_t shared_numbers(int m) const;
  std::vector<int> own_stages(int m) const;

  const StepSetup& setup_;
  const std::vector<Module>& modules_;
  const ScheduleOptions& options_;
  const StepSizes& sizes_;
  const int rank_, language_;
  const std::int64_t samples_;  // of a microbatch, in all replicas
};

// The communication and updates of the optimizers of a rank's parameter sets.
class RankOptimizers {
 public:
  RankOptimizers(const StepSetup& setup, const std::vector<Module>& modules, int global_rank);

  Collectives gathers(const Stage& stage) const { return all_of(stage, &OptimizerCollectives::gathers); }
  Collectives reductions(const Stage& stage) const { return all_of(stage, &OptimizerCollectives::reductions); }
  Collectives replica_sums(const Stage& stage) const { return all_of(stage, &OptimizerCollectives::replica_sums); }
  OptimizerElements elements() const;

 private:
  struct Optimizer {
    int module;
    OptimizerCollectives collectives;
  };
  Collectives all_of(const Stage& stage, Collectives (OptimizerCollectives::*list)(int) const) const;
  std::vector<Optimizer> optimizers_;
};

// A rank's communication in one training step, summed over the ops of the schedule. It equals what Progress::traffic()
// counts during a step, on every rank, for every group and operation. The experts' all-to-all is an exception: only its
// sums over ep x expt_tp are equal (paper/stage.h). Communication outside of steps is not counted: the first exchange
// of batch sizes, log lines, evaluation, checkpoints.
//
// `sizes` are those of the step. At its end, the ranks of a replica share the batches of the `next` one.
TrafficTable step_traffic(const StepSetup& setup, const Topology& topology, const StepPlan& plan,
                          const StepSizes& sizes, const StepSizes& next, int global_rank);

}  // namespace braid
