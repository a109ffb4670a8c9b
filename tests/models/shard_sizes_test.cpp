// The described size of a rank's shards is what the model allocates, and the shards of all ranks cover the parameters.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include "models/describe.h"
#include "nn/parameters.h"
#include "support/layout.h"

namespace braid {
namespace {

using testing::Layout;

Parameters allocate(const std::vector<ParamSpec>& specs, int stage, const ShardCoordinates& place,
                    at::ScalarType dtype) {
  return Parameters(specs, stage, place, dtype, at::kCPU);
}

// Memory is only reserved, never written.
TEST(ShardSizes, BytesOfNemotronAreThoseAllocated) {
  const Provider& nemotron = provider("nemotron-vlm-20l");
  for (const int pp : {1, 2}) {
    const ProviderLayout layout = {.language = {.tp = 2, .ep = 16, .pp = pp},
                                   .encoders = {{"images", {.tp = 2, .pp = pp}}}};
    const ModelDescription model = describe_model(nemotron, layout, "bfloat16");
    for (int stage = 0; stage < pp; ++stage) {
      const ShardCoordinates place = {.tp = 1, .tp_size = 2, .ep = 7, .ep_size = 16};
      EXPECT_EQ(allocate(declare_parameters(nemotron.language, pp), stage, place, at::kBFloat16).bytes(),
                model.grids[0].stages[static_cast<std::size_t>(stage)].bytes);
      const ShardCoordinates encoder_place = {.tp = 1, .tp_size = 2};
      std::int64_t encoder =
          allocate(declare_parameters(nemotron.encoders[0].model, pp), stage, encoder_place, at::kBFloat16).bytes();
      if (stage == pp - 1)
        encoder +=
            allocate(declare_parameters(nemotron.encoders[0].projector), 0, encoder_place, at::kBFloat16).bytes();
      EXPECT_EQ(encoder, model.grids[1].stages[static_cast<std::size_t>(stage)].bytes);
    }
  }
}

// Every rank of the grid: with replicas counted once, the shards cover each parameter exactly.
TEST(ShardSizes, ShardsOfAllRanksAreTheWhole) {
  const Provider& tiny = provider("tiny-vlm");
  for (const Layout& layout :
       {Layout{}, Layout{.tp = 2, .dp = 2}, Layout{.tp = 4, .ep = 2}, Layout{.tp = 2, .cp = 2, .ep = 4, .pp = 3},
        Layout{.tp = 2, .ep = 2, .expt_tp = 2, .pp = 2, .dp = 4}, Layout{.ep = 4, .expt_tp = 2, .dp = 8}}) {
    const LayoutSizes sizes = {layout.tp, layout.cp, layout.ep, layout.expt_tp, layout.pp};
    const Topology topology = topology_of(layout, experts_of(tiny.language));
    const Module& module = topology.language();
    const std::vector<ParamSpec> specs = declare_parameters(tiny.language, layout.pp);
    const ModelDescription model = describe_model(tiny, {.language = sizes}, "float64");
    const int ranks_per_stage = module.dense.size() / layout.pp;
    std::map<std::string, std::int64_t> held;
    for (int rank = 0; rank < topology.world_size(); ++rank) {
      const int stage = module.dense.coord(rank, "pp");
      const Parameters parameters = allocate(specs, stage, shard_coordinates(module, rank), at::kDouble);
      EXPECT_EQ(parameters.bytes(), model.grids[0].stages[static_cast<std::size_t>(stage)].bytes) << "rank " << rank;
      for (const auto& entry : parameters.entries()) held[entry.spec.name] += entry.value.numel();
    }
    for (const ParamSpec& spec : specs) {
      int shards = 1;
      if (spec.expert) shards *= layout.ep;
      if (spec.tp_dim >= 0) shards *= spec.expert ? layout.expt_tp : layout.tp;
      EXPECT_EQ(held[spec.name] * shards, num_elements(spec) * ranks_per_stage) << spec.name;
    }
  }
}

}  // namespace
}  // namespace braid
