// Which rank writes which shard of a checkpoint, in the layouts of real runs.
#include <gmock/gmock.h>
#include "run/recipe.h"
#include "run/resume/stored_state.h"

namespace braid {
namespace {

Topology topology_of(const Recipe& recipe) { return Topology(recipe.topology, workload_of(recipe)); }

TEST(StoredSets, KeysOfModulesNeverCollide) {
  const Recipe recipe = parse_recipe(
      "model: {provider: tiny-omni}\ntopology: {modules: {images: {kind: encoder}, "
      "audio: {kind: encoder}, language: {}}}");
  std::map<std::string, int> uses;
  for (const StoredSet& set : stored_sets(recipe.model.model, topology_of(recipe)))
    for (const ParamSpec& spec : set.specs)
      for (const KeyedBox& box : keyed_boxes(spec, {}, set.rule))
        ++uses[fmt::format("{} {}", box.key, fmt::join(box.begin, ","))];
  EXPECT_GT(uses.size(), 50u);
  for (const auto& [key, count] : uses) EXPECT_EQ(count, 1) << key;
}

// Every shard is written by one of the ranks that hold it, all ranks agree on which, and ranks that hold the same
// amount write about the same amount.
TEST(ShardWriters, OneHolderWritesAndTheWorkIsSpreadEvenly) {
  const Recipe recipe = parse_recipe(R"(
model: {provider: nemotron-vlm-54l}
topology: {modules: {images: {kind: encoder, dp: 8}, language: {tp: 2, dp: 32, ep: 16}}}
train: {micro_batch: 1, global_batch: 192}
)");
  const Topology topology = topology_of(recipe);
  const std::vector<StoredSet> sets = stored_sets(recipe.model.model, topology);
  const ShardWriters writers(sets, topology);
  std::vector<std::int64_t> load(static_cast<std::size_t>(topology.world_size()));
  for (std::size_t s = 0; s < sets.size(); ++s) {
    const Module& module = topology.module(sets[s].module);
    for (std::size_t p = 0; p < sets[s].specs.size(); ++p)
      for (int rank = module.dense.rank_offset(); rank < module.dense.end(); ++rank) {
        const ParamSpec& spec = sets[s].specs[p];
        const int writer = writers.writer(s, p, rank);
        ASSERT_TRUE(module.dense.contains(writer)) << spec.name;
        const ShardCoordinates mine = shard_coordinates(module, rank), theirs = shard_coordinates(module, writer);
        if (spec.expert) {
          EXPECT_EQ(mine.ep, theirs.ep) << spec.name;
        } else if (spec.tp_dim >= 0) {
          EXPECT_EQ(mine.tp, theirs.tp) << spec.name;
        }
        if (writer != rank) continue;
        std::int64_t elements = 1;
        for (const std::int64_t size : local_shape(spec, mine)) elements *= size;
        load[static_cast<std::size_t>(rank)] += elements;
      }
  }
  std::int64_t total = 0;
  for (const StoredSet& set : sets)
    for (const ParamSpec& spec : set.specs) total += num_elements(spec);
  EXPECT_EQ(std::accumulate(load.begin(), load.end(), std::int64_t{0}), total) << "every element has one writer";
  const auto language_begin = load.begin() + topology.language().dense.rank_offset();
  const double mean = static_cast<double>(std::accumulate(language_begin, load.end(), std::int64_t{0})) /
                      static_cast<double>(load.end() - language_begin);
  EXPECT_LT(static_cast<double>(*std::max_element(language_begin, load.end())), 1.1 * mean);
}

}  // namespace
}  // namespace braid
