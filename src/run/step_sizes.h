// The sizes of a training step's microbatches, and the other facts besides the topology on which its ops depend. No
// libtorch here.
#pragma once

#include <vector>

#include "optim/optimizer_config.h"
#include "paper/stage.h"
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

}  // namespace braid
