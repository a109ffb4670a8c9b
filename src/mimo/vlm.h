// A vision-language model on one rank: the parts of it that run here, and one step of them as the schedule says.
//
// Encoder ranks turn the images of their samples into rows of the language model's width. The first rank of each
// encoder replica's last stage hands the rows of each language replica to that replica's first rank, counts per sample
// ahead; there they are shared with the replica's other ranks and put where the image tokens stand. Gradients go back
// the same way.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "mimo/sample.h"
#include "models/assemble.h"
#include "models/hybrid_lm.h"
#include "models/projector.h"
#include "models/providers.h"
#include "models/radio.h"
#include "plan/schedule.h"

namespace braid {

class Groups;
class World;

struct VlmOptions {
  at::ScalarType dtype = at::kFloat;
  bool sequence_parallel = false;
  bool recompute = false;
  std::vector<std::string> frozen{};  // encoder modules
  std::uint64_t seed = 1234;
};

struct StepLosses {
  double loss_sum = 0;    // over all counted tokens of the step, on every rank
  double num_tokens = 0;  // those tokens
};

// Some of a module's parameters on this rank.
struct ParameterSet {
  std::string name;  // "language", "images.vision", "images.projector"
  int module = 0;    // index into topology.modules()
  std::vector<ParamSpec> specs;
  Parameters parameters;
};

class Vlm {
 public:
  Vlm(const Provider& provider, const Topology& topology, const Groups& groups, World& world,
      const VlmOptions& options);
  ~Vlm();

  // Called with a module's index when its last backward of the step is about to run.
  using BeforeLastBackward = std::function<void(int module)>;

  // Forward and backward of all microbatches, `micro_batch` samples per language replica each, from sample number
  // `first_sample` on. Gradients of the summed token losses are added up in the parameters' grad; nothing is reduced.
  StepLosses run_step(const DataSource& data, std::int64_t first_sample, int micro_batch, const Schedule& schedule,
                      const ScheduleOptions& options, const BeforeLastBackward& before_last_backward = {});

  // After the optimizer's step: experts that got few tokens are chosen more easily. Collective over the language ranks.
  void update_expert_bias();

  const std::vector<std::unique_ptr<ParameterSet>>& parameter_sets() const { return sets_; }

 private:
  class Step;
  struct EncoderPart;
  struct LanguagePart;

  bool is_trained(int module) const;
  const Parameters& add_set(const std::string& name, int module, const std::vector<ParamSpec>& specs, int stage,
                            bool trained);

  const Provider& provider_;
  const Topology& topology_;
  const Groups& groups_;
  World& world_;
  const VlmOptions options_;
  const int image_token_id_;
  const std::vector<Edge> edges_;
  std::vector<std::unique_ptr<ParameterSet>> sets_;     // of this rank
  std::vector<std::unique_ptr<EncoderPart>> encoders_;  // by module; null where it does not run here
  std::unique_ptr<LanguagePart> language_;              // likewise
};

}  // namespace braid
