// The sizes of a training step's microbatches, and the other facts besides the topology on which its ops depend. No
// libtorch here.
#pragma once

#include <string>
#include <vector>

#include "optim/optimizer_config.h"
#include "paper/stage.h"
#include "plan/bridge.h"
#include "plan/op.h"
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
const EncoderConfig& encoder_of(const Provider& provider, const Module& module);

// The sizes of a step's microbatches on one rank, and which of its parameters train. What a rank computes and
// communicates (run/rank_step.h) and the memory it needs (predict/memory.h) are counted from the same sizes.
class RankSizes {
 public:
  // `modules` are those of the whole world; `sizes` must include the replicas that are queried. All must outlive this
  // object.
  RankSizes(const StepSetup& setup, const std::vector<Module>& modules, const StepSizes& sizes, int global_rank);
  RankSizes of_step(const StepSizes& sizes) const { return {setup_, modules_, sizes, rank_}; }

  // --- modules

  int modules() const { return static_cast<int>(modules_.size()); }
  const Module& module(int m) const { return modules_[static_cast<std::size_t>(m)]; }
  int language() const { return language_; }
  const EncoderConfig& encoder(int m) const { return encoder_of(setup_.model, module(m)); }
  bool trains(const std::string& set) const;

  // --- a microbatch of the rank's replica

  const StepSizes::Text& replica_text(int microbatch) const;
  TextSizes text(int microbatch) const;
  StepSizes::Extents extents(int m, int microbatch) const;  // of the encoder's items
  std::int64_t media_bytes(int m, int microbatch) const;    // of these items, as they are read
  StageOnPaper walk(const Stage& stage, int microbatch) const;

  // --- a microbatch of all replicas

  std::int64_t samples() const { return samples_; }
  SampleRange samples_of(int m, int global_rank) const { return samples_of_replica(module(m), samples_, global_rank); }
  std::int64_t embeddings(int m, int microbatch, const SampleRange& samples) const;  // rows that the encoder produces
  std::int64_t embedding_bytes() const;                                              // of one row

 private:
  const StepSetup& setup_;
  const std::vector<Module>& modules_;
  const StepSizes& sizes_;
  const int rank_, language_;
  const std::int64_t samples_;
};

// A parameter set of a module, as it is declared.
struct DeclaredSet {
  std::vector<ParamSpec> specs{};
  bool trains = true;
};
std::vector<DeclaredSet> declared_sets(const StepSetup& setup, const Module& module);

}  // namespace braid
