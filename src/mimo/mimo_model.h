// A multimodal model on one rank: the stages of its modules that run here, and how embeddings are merged into its text.
#pragma once

#include "models/decoder.h"
#include "models/encoder.h"
#include "ops/rows.h"
#include "plan/schedule.h"

namespace braid {

class Groups;
class World;

struct MimoOptions {
  at::ScalarType dtype = at::kFloat;
  bool sequence_parallel = false;  // of the language model
  OverlapConfig overlap{};         // of the language model
  RecomputeConfig recompute{};
  std::vector<std::string> frozen{};  // parameter sets that do not train
  std::uint64_t seed = 1234;
  bool initialize_weights = true;  // false: they stay uninitialised until they are drawn or loaded
};

// A subset of a module's parameters on this rank.
struct ParameterSet {
  std::string name;  // one of parameter_set_names()
  int module = 0;    // index into topology.modules()
  std::vector<ParamSpec> specs;
  Parameters parameters;
};

class MimoModel {
 public:
  // One stage on this rank.
  struct LocalStage {
    const Stage stage;
    const StagePosition position;
    const bool is_first_of_stage;  // whether it is the first of its replica's ranks of this stage
    const Parallel parallel;
    std::unique_ptr<EncoderStage> encoder{};  // exactly one of these two is set
    std::unique_ptr<Decoder> language{};
    const EncoderConfig* config = nullptr;  // of the encoder
  };

  // Every encoder module of the topology must have the name of one of the provider's encoders.
  MimoModel(const Provider& provider, const Topology& topology, const Groups& groups, World& world,
            const MimoOptions& options);

  const Provider& provider() const { return provider_; }
  const Topology& topology() const { return topology_; }
  const Groups& groups() const { return groups_; }
  World& world() const { return world_; }
  at::TensorOptions tensor_options() const;

  // In the order of stages_of() this rank.
  const std::vector<std::unique_ptr<LocalStage>>& local_stages() const { return local_stages_; }
  const LocalStage& local_stage(const Stage& stage) const;
  const EncoderConfig& encoder_config(int module) const {
    return encoder_named(provider_, topology_.module(module).name);
  }
  const std::vector<std::unique_ptr<ParameterSet>>& parameter_sets() const { return sets_; }

  // After the optimizer's step: raises the router bias of experts that received few tokens. Collective over the
  // language ranks.
  void update_expert_bias();
  void forget_expert_tokens();  // instead, after a step without an update

 private:
  void add_language(const std::vector<LocalStage*>& locals);
  void add_encoder(LocalStage& local);
  std::vector<Moe*> moe_layers() const;
  const Parameters& add_set(const std::string& name, int module, const std::vector<ParamSpec>& specs,
                            const std::vector<int>& stages);

  const Provider provider_;
  const Topology& topology_;
  const Groups& groups_;
  World& world_;
  const MimoOptions options_;
  std::vector<std::unique_ptr<ParameterSet>> sets_;  // of this rank
  std::vector<std::unique_ptr<LocalStage>> local_stages_;
};

// --- merging text and encoder embeddings of a replica's tokens, which are split over its ranks (nn/parallel.h)

// The share of a replica's tokens that this rank embeds and whose labels it has.   [T] -> [T / cp]
inline at::Tensor own_tokens(const at::Tensor& tokens, const Parallel& parallel) {
  return tokens.chunk(parallel.cp.size(), 0)[static_cast<std::size_t>(parallel.cp.rank())];
}

// The number of T tokens that a rank holds between parallel regions.
inline std::int64_t own_rows_of(std::int64_t tokens, const Parallel& parallel) {
  return tokens / parallel.cp.size() / (parallel.sequence_parallel ? parallel.tp.size() : 1);
}

// The places of the replica's embeddings of one encoder among the tokens that this rank holds between parallel regions.
// `is_media` ([T] bool, on the CPU) marks the encoder's tokens among those of the replica. The result is on `device`
// but is computed by the host, which therefore need not wait for the device.
RowPlaces find_media(const at::Tensor& is_media, const Parallel& parallel, const at::Device& device);

// `merged` ([t, H]) with `embeddings` (of all the encoder's tokens of the replica) in place of this rank's media
// tokens. If the embeddings require a gradient, every rank that shares them takes part in its backward, even a rank
// that uses none of them, because that backward is collective.
at::Tensor put_embeddings(const at::Tensor& merged, const at::Tensor& embeddings, const RowPlaces& media);

}  // namespace braid
