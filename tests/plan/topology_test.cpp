// Valid topologies: modules placed on ranks, two views of each grid, process groups in the same order on all ranks.
// validate_test.cpp has the invalid ones.
#include "plan/topology.h"
#include <gmock/gmock.h>

namespace braid {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using Groups = std::vector<std::vector<int>>;

// The 20-layer recipe on eight ranks: reference values from Megatron.
TopologyConfig eight_ranks() {
  return {.modules = {{.name = "images", .kind = ModuleKind::Encoder, .tp = 2, .dp = 2},
                      {.name = "language", .kind = ModuleKind::Language, .tp = 2, .dp = 2, .ep = 4}}};
}

Workload moe_workload() { return {.micro_batch = 1, .global_batch = 8, .num_experts = 128}; }

Groups groups_named(const Topology& topology, const std::string& name) {
  Groups found;
  for (const GroupSpec& group : topology.groups())
    if (group.name == name) found.push_back(group.ranks);
  return found;
}

std::vector<int> ranks_of(const Grid& grid) {
  std::vector<int> ranks(grid.size());
  std::iota(ranks.begin(), ranks.end(), grid.rank_offset());
  return ranks;
}

// --- random topologies that are valid by construction

struct Case {
  TopologyConfig config;
  Workload workload;
};

int one_of(const std::vector<int>& values, std::mt19937& random) { return values[random() % values.size()]; }

int divisor_of(int n, std::mt19937& random) {
  std::vector<int> divisors;
  for (int i = 1; i <= n; ++i)
    if (n % i == 0) divisors.push_back(i);
  return one_of(divisors, random);
}

void split_experts(ModuleConfig& module, std::mt19937& random) {
  const int stage = module.tp * module.cp * module.dp;
  module.expt_tp = divisor_of(stage, random);
  module.ep = divisor_of(stage / module.expt_tp, random);
  if (random() % 2) module.expt_dp = stage / module.expt_tp / module.ep;
}

ModuleConfig random_language(std::mt19937& random) {
  ModuleConfig module = {.name = "language", .kind = ModuleKind::Language};
  for (int* size : {&module.tp, &module.cp, &module.pp}) *size = one_of({1, 1, 2, 3}, random);
  module.dp = one_of({1, 2, 3, 4, 6}, random);
  split_experts(module, random);
  return module;
}

// Data parallel size smaller than, equal to or up to `micro_batch` times larger than the language model's.
ModuleConfig random_encoder(const std::string& name, const Case& made, const ModuleConfig& language,
                            std::mt19937& random) {
  ModuleConfig module = {.name = name, .kind = ModuleKind::Encoder};
  module.dp =
      random() % 2 ? divisor_of(language.dp, random) : language.dp * divisor_of(made.workload.micro_batch, random);
  if (!made.config.colocated) {
    for (int* size : {&module.tp, &module.cp, &module.pp}) *size = one_of({1, 1, 2, 3}, random);
  } else {
    const int total = static_cast<int>(grid_size(language));
    if (total % module.dp) module.dp = language.dp;
    module.pp = divisor_of(total / module.dp, random);
    module.cp = divisor_of(total / module.dp / module.pp, random);
    module.tp = total / module.dp / module.pp / module.cp;
  }
  split_experts(module, random);
  return module;
}

Case random_case(std::mt19937& random) {
  Case made;
  made.config.colocated = random() % 3 == 0;
  made.workload.micro_batch = one_of({1, 2, 4, 6}, random);
  const ModuleConfig language = random_language(random);
  made.workload.global_batch = made.workload.micro_batch * language.dp * one_of({1, 2, 5}, random);
  made.workload.num_experts = language.ep * one_of({1, 3, 8}, random);
  const std::vector<std::string> names = {"images", "audio", "video"};
  for (int i = one_of({0, 1, 2, 3}, random); i-- > 0;)
    made.config.modules.push_back(random_encoder(names[i], made, language, random));
  const auto position = random() % (made.config.modules.size() + 1);
  made.config.modules.insert(made.config.modules.begin() + position, language);
  return made;
}

template <class Check>
void for_random_topologies(unsigned seed, Check check) {
  std::mt19937 random(seed);
  for (int round = 0; round < 400 && !testing::Test::HasFatalFailure(); ++round) {
    SCOPED_TRACE(fmt::format("seed {} round {}", seed, round));
    const Case made = random_case(random);
    check(Topology(made.config, made.workload));
  }
}

// --- placement

TEST(TopologyTest, ModulesFollowEachOther) {
  const Topology topology(eight_ranks(), moe_workload());
  EXPECT_EQ(topology.world_size(), 8);
  EXPECT_FALSE(topology.colocated());
  EXPECT_EQ(ranks_of(topology.module("images").dense), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(ranks_of(topology.module("language").dense), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_TRUE(topology.module("images").is_encoder);
  EXPECT_FALSE(topology.module("language").is_encoder);
  EXPECT_THROW(topology.module("audio"), std::logic_error);
}

TEST(TopologyTest, OffsetsMayPlaceModulesInAnyOrder) {
  TopologyConfig config = eight_ranks();
  config.world_size = 8;
  config.modules[0].rank_offset = 4;
  config.modules[1].rank_offset = 0;
  const Topology topology(config, moe_workload());
  EXPECT_EQ(topology.module("images").dense.rank_offset(), 4);
  EXPECT_EQ(topology.modules()[0].name, "images");  // recipe order is kept
  EXPECT_EQ(topology.groups()[0].name, "images.tp");
}

TEST(TopologyTest, ColocatedModulesShareTheirRanks) {
  const TopologyConfig config = {
      .colocated = true,
      .modules = {{.name = "images", .kind = ModuleKind::Encoder, .dp = 4}, {.name = "language", .tp = 2, .dp = 2}}};
  const Topology topology(config, {.micro_batch = 2, .global_batch = 4});
  EXPECT_EQ(topology.world_size(), 4);
  EXPECT_THAT(topology.modules_of(3), ElementsAre(&topology.modules()[0], &topology.modules()[1]));
  EXPECT_EQ(topology.coordinates_of(3), "images[tp=0 cp=0 dp=3 pp=0] + language[tp=1 cp=0 dp=1 pp=0]");
}

TEST(TopologyTest, ARankOutsideColocationHasOneModule) {
  const Topology topology(eight_ranks(), moe_workload());
  EXPECT_THAT(topology.modules_of(5), ElementsAre(&topology.module("language")));
  EXPECT_EQ(topology.coordinates_of(5), "language[tp=1 cp=0 dp=0 pp=0]");
  EXPECT_THAT(topology.modules_of(8), IsEmpty());
}

TEST(TopologyTest, ExpertDataParallelSizeFillsTheGrid) {
  TopologyConfig config = {
      .modules = {{.name = "language", .tp = 2, .cp = 2, .dp = 3, .pp = 2, .ep = 2, .expt_tp = 3}}};
  const Topology topology(config, {.micro_batch = 1, .global_batch = 3, .num_experts = 4});
  const Grid& expert = topology.module("language").expert;
  EXPECT_EQ(expert.dims()[2].size, 2);
  EXPECT_EQ(expert.size(), 24);
}

// --- groups

TEST(TopologyTest, GroupsOfTheEightRankRecipe) {
  const Topology topology(eight_ranks(), moe_workload());
  EXPECT_EQ(groups_named(topology, "images.tp"), (Groups{{0, 1}, {2, 3}}));
  EXPECT_EQ(groups_named(topology, "images.dp-cp"), (Groups{{0, 2}, {1, 3}}));
  EXPECT_EQ(groups_named(topology, "images.pp-dp-cp-tp"), (Groups{{0, 1, 2, 3}}));
  EXPECT_EQ(groups_named(topology, "language.tp"), (Groups{{4, 5}, {6, 7}}));
  EXPECT_EQ(groups_named(topology, "language.dp-cp"), (Groups{{4, 6}, {5, 7}}));
  EXPECT_EQ(groups_named(topology, "language.ep"), (Groups{{4, 5, 6, 7}}));
  EXPECT_EQ(groups_named(topology, "language.expt_dp"), (Groups{{4}, {5}, {6}, {7}}));
  EXPECT_EQ(groups_named(topology, "language.dp-cp-tp"), (Groups{{4, 5, 6, 7}}));
}

// Megatron's groups, and the replicas that share a batch.
TEST(TopologyTest, GroupsAreCreatedModuleByModuleInMegatronsOrder) {
  const Topology topology(eight_ranks(), moe_workload());
  std::vector<std::string> names;
  for (const GroupSpec& group : topology.groups())
    if (names.empty() || names.back() != group.name) names.push_back(group.name);
  std::vector<std::string> expected;
  for (const char* module : {"images", "language"})
    for (const char* key : {"tp", "cp", "pp", "dp", "dp-cp", "cp-tp", "ep", "expt_tp", "expt_dp", "pp-tp", "dp-cp-tp",
                            "pp-dp-cp-tp", "ep-expt_tp", "pp-ep-expt_tp", "pp-cp-tp"})
      expected.push_back(fmt::format("{}.{}", module, key));
  EXPECT_EQ(names, expected);
}

// --- properties of any topology

TEST(TopologyPropertyTest, EveryRankOfTheWorldHasAModule) {
  for_random_topologies(11, [](const Topology& topology) {
    const std::size_t expected = topology.colocated() ? topology.modules().size() : 1;
    for (int rank = 0; rank < topology.world_size(); ++rank) ASSERT_THAT(topology.modules_of(rank), SizeIs(expected));
  });
}

TEST(TopologyPropertyTest, BothViewsCoverTheSameRanksAndStages) {
  for_random_topologies(12, [](const Topology& topology) {
    for (const Module& module : topology.modules()) {
      ASSERT_EQ(ranks_of(module.dense), ranks_of(module.expert));
      for (int rank : ranks_of(module.dense)) {
        ASSERT_EQ(module.dense.coord(rank, "pp"), module.expert.coord(rank, "pp"));
        ASSERT_EQ(module.dense.rank_at(module.dense.coords(rank)), rank);
        ASSERT_EQ(module.expert.rank_at(module.expert.coords(rank)), rank);
      }
    }
  });
}

// For each of its module's 15 group names, a rank is in exactly one group.
TEST(TopologyPropertyTest, GroupsOfOneNamePartitionTheirModule) {
  for_random_topologies(13, [](const Topology& topology) {
    std::map<std::string, std::vector<int>> members;
    for (const GroupSpec& group : topology.groups()) {
      ASSERT_TRUE(std::is_sorted(group.ranks.begin(), group.ranks.end()));
      auto& all = members[group.name];
      all.insert(all.end(), group.ranks.begin(), group.ranks.end());
    }
    ASSERT_EQ(members.size(), 15 * topology.modules().size());
    for (auto& [name, ranks] : members) {
      std::sort(ranks.begin(), ranks.end());
      ASSERT_EQ(ranks, ranks_of(topology.module(name.substr(0, name.find('.'))).dense)) << name;
    }
  });
}

// The groups that a rank expects, computed from coordinates alone: per module and kind, the ranks that agree in all
// other dims.
std::vector<GroupSpec> groups_seen_from(const Topology& topology, int global_rank) {
  const std::vector<std::vector<std::string>> kinds = {{"tp"},
                                                       {"cp"},
                                                       {"pp"},
                                                       {"dp"},
                                                       {"dp", "cp"},
                                                       {"cp", "tp"},
                                                       {"ep"},
                                                       {"expt_tp"},
                                                       {"expt_dp"},
                                                       {"pp", "tp"},
                                                       {"dp", "cp", "tp"},
                                                       {"pp", "dp", "cp", "tp"},
                                                       {"ep", "expt_tp"},
                                                       {"pp", "ep", "expt_tp"},
                                                       {"pp", "cp", "tp"}};
  std::vector<GroupSpec> seen;
  for (const Module* module : topology.modules_of(global_rank)) {
    for (const auto& dims : kinds) {
      const bool expert = dims.back().starts_with("e");
      const Grid& view = expert ? module->expert : module->dense;
      GroupSpec& group = seen.emplace_back(GroupSpec{fmt::format("{}.{}", module->name, fmt::join(dims, "-")), {}});
      for (int peer : ranks_of(view)) {
        const bool together = std::all_of(view.dims().begin(), view.dims().end(), [&](const Dim& dim) {
          return std::count(dims.begin(), dims.end(), dim.name) ||
                 view.coord(peer, dim.name) == view.coord(global_rank, dim.name);
        });
        if (together) group.ranks.push_back(peer);
      }
    }
  }
  return seen;
}

std::vector<std::string> text_of(const std::vector<GroupSpec>& groups, int with_rank) {
  std::vector<std::string> text;
  for (const GroupSpec& group : groups)
    if (std::count(group.ranks.begin(), group.ranks.end(), with_rank))
      text.push_back(fmt::format("{} {}", group.name, fmt::join(group.ranks, ",")));
  return text;
}

// Every rank iterates over the whole list and finds in it, in order, exactly the groups it expects.
TEST(TopologyPropertyTest, EachRankFindsTheGroupsItExpectsInOrder) {
  std::mt19937 random(100);
  for_random_topologies(14, [&](const Topology& topology) {
    const int rank = static_cast<int>(random() % topology.world_size());
    ASSERT_EQ(text_of(groups_seen_from(topology, rank), rank), text_of(topology.groups(), rank));
  });
}

// Two ranks create their common groups in the same order, so neither waits for the other in a different group.
TEST(TopologyPropertyTest, PeersExpectTheirCommonGroupsInTheSameOrder) {
  std::mt19937 random(101);
  for_random_topologies(15, [&](const Topology& topology) {
    const int one = static_cast<int>(random() % topology.world_size());
    const int other = static_cast<int>(random() % topology.world_size());
    ASSERT_EQ(text_of(groups_seen_from(topology, one), other), text_of(groups_seen_from(topology, other), one));
  });
}

TEST(TopologyPropertyTest, TheSameConfigGivesTheSameGroups) {
  std::mt19937 random(16);
  for (int round = 0; round < 100; ++round) {
    const Case made = random_case(random);
    const Topology here(made.config, made.workload), there(made.config, made.workload);
    ASSERT_EQ(here.groups().size(), there.groups().size());
    for (std::size_t i = 0; i < here.groups().size(); ++i) {
      ASSERT_EQ(here.groups()[i].name, there.groups()[i].name);
      ASSERT_EQ(here.groups()[i].ranks, there.groups()[i].ranks);
    }
  }
}

// --- as a section of a recipe

TEST(TopologyConfigTest, PrintedConfigReadsBackTheSame) {
  std::mt19937 random(17);
  for (int round = 0; round < 50; ++round) {
    Case made = random_case(random);
    YamlWriter written, again;
    describe(written, made.config);
    TopologyConfig config;
    YamlReader reader = YamlReader::from_text(written.text(), "topology.yaml");
    describe(reader, config);
    ASSERT_THAT(reader.finish(), IsEmpty());
    describe(again, config);
    ASSERT_EQ(written.text(), again.text());
  }
}

}  // namespace
}  // namespace braid
