// Rank enumeration. The worked examples come from Megatron's HyperCommGrid; tests/oracles/hyper_comm_grid_test.py
// compares random shapes with it.
#include <gmock/gmock.h>
#include <stdexcept>
#include "plan/topology.h"

namespace braid {
namespace {

using testing::ElementsAre;
using Groups = std::vector<std::vector<int>>;

// Eight ranks starting at rank 4.
Grid dense_example() { return Grid(4, {{"tp", 2}, {"cp", 1}, {"dp", 2}, {"pp", 2}}); }
Grid expert_example() { return Grid(4, {{"expt_tp", 1}, {"ep", 2}, {"expt_dp", 2}, {"pp", 2}}); }

Grid random_grid(std::mt19937& random) {
  auto below = [&](int n) { return static_cast<int>(random() % n); };
  std::vector<Dim> dims;
  for (const char* name : {"tp", "cp", "dp", "pp"}) dims.push_back({name, 1 + below(4)});
  return Grid(below(3) ? below(100) : 0, dims);
}

// Any subset of the dims, listed in any order.
std::vector<std::string> random_dims(const Grid& grid, std::mt19937& random) {
  std::vector<std::string> dims;
  for (const Dim& dim : grid.dims())
    if (random() % 2) dims.push_back(dim.name);
  std::shuffle(dims.begin(), dims.end(), random);
  return dims;
}

TEST(GridTest, FirstDimVariesFastest) {
  const Grid grid(4, {{"tp", 2}, {"cp", 1}, {"dp", 2}, {"pp", 2}});
  EXPECT_EQ(grid.size(), 8);
  EXPECT_EQ(grid.end(), 12);
  EXPECT_THAT(grid.coords(4), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(grid.coords(5), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(grid.coords(6), ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(grid.coords(8), ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(grid.rank_at({1, 0, 1, 1}), 11);
  EXPECT_EQ(grid.coord(9, "tp"), 1);
  EXPECT_EQ(grid.coord(9, "pp"), 1);
  EXPECT_EQ(grid.coordinates_of(9), "tp=1 cp=0 dp=0 pp=1");
}

TEST(GridTest, ContainsItsOwnRanksOnly) {
  const Grid grid = dense_example();
  EXPECT_FALSE(grid.contains(3));
  EXPECT_TRUE(grid.contains(4));
  EXPECT_TRUE(grid.contains(11));
  EXPECT_FALSE(grid.contains(12));
}

TEST(GridTest, DenseGroupsOfTheWorkedExample) {
  const Grid grid = dense_example();
  EXPECT_EQ(grid.groups({"tp"}), (Groups{{4, 5}, {6, 7}, {8, 9}, {10, 11}}));
  EXPECT_EQ(grid.groups({"dp"}), (Groups{{4, 6}, {5, 7}, {8, 10}, {9, 11}}));
  EXPECT_EQ(grid.groups({"pp"}), (Groups{{4, 8}, {5, 9}, {6, 10}, {7, 11}}));
  EXPECT_EQ(grid.groups({"tp", "pp"}), (Groups{{4, 5, 8, 9}, {6, 7, 10, 11}}));
  EXPECT_EQ(grid.groups({"tp", "cp", "dp"}), (Groups{{4, 5, 6, 7}, {8, 9, 10, 11}}));
}

TEST(GridTest, ExpertGroupsOfTheWorkedExample) {
  const Grid grid = expert_example();
  EXPECT_EQ(grid.groups({"ep"}), (Groups{{4, 5}, {6, 7}, {8, 9}, {10, 11}}));
  EXPECT_EQ(grid.groups({"expt_dp"}), (Groups{{4, 6}, {5, 7}, {8, 10}, {9, 11}}));
  EXPECT_EQ(grid.groups({"expt_tp", "ep", "pp"}), (Groups{{4, 5, 8, 9}, {6, 7, 10, 11}}));
}

TEST(GridTest, KeysListDimsInReversedDeclarationOrder) {
  const Grid grid = dense_example();
  EXPECT_EQ(grid.key({"tp"}), "tp");
  EXPECT_EQ(grid.key({"tp", "dp"}), "dp-tp");
  EXPECT_EQ(grid.key({"dp", "tp"}), "dp-tp");
  EXPECT_EQ(grid.key({"tp", "cp", "pp", "dp"}), "pp-dp-cp-tp");
  EXPECT_EQ(expert_example().key({"expt_tp", "ep"}), "ep-expt_tp");
}

TEST(GridTest, OneRankIsAGrid) {
  const Grid grid(7, {{"tp", 1}, {"dp", 1}});
  EXPECT_THAT(grid.coords(7), ElementsAre(0, 0));
  EXPECT_EQ(grid.groups({"tp", "dp"}), Groups{{7}});
}

TEST(GridTest, MistakesOfTheCallerAreRefused) {
  const Grid grid = dense_example();
  EXPECT_THROW(grid.coords(3), std::logic_error);
  EXPECT_THROW(grid.coords(12), std::logic_error);
  EXPECT_THROW(grid.coord(4, "ep"), std::logic_error);
  EXPECT_THROW(grid.groups({"tp", "ep"}), std::logic_error);
  EXPECT_THROW(grid.rank_at({0, 0, 0}), std::logic_error);
  EXPECT_THROW(grid.rank_at({2, 0, 0, 0}), std::logic_error);
  EXPECT_THROW(Grid(-1, {{"tp", 1}}), std::logic_error);
  EXPECT_THROW(Grid(0, {{"tp", 0}}), std::logic_error);
  EXPECT_THROW(Grid(0, {{"tp", 1 << 20}, {"dp", 1 << 20}}), std::logic_error);
}

TEST(GridTest, CoordinatesInvertOnRandomGrids) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const Grid grid = random_grid(random);
    for (int rank = grid.rank_offset(); rank < grid.end(); ++rank) ASSERT_EQ(grid.rank_at(grid.coords(rank)), rank);
  }
}

TEST(GridTest, GroupsPartitionRandomGrids) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const Grid grid = random_grid(random);
    std::vector<int> ranks;
    for (const auto& group : grid.groups(random_dims(grid, random))) {
      ASSERT_TRUE(std::is_sorted(group.begin(), group.end()));
      ranks.insert(ranks.end(), group.begin(), group.end());
    }
    std::sort(ranks.begin(), ranks.end());
    std::vector<int> expected(grid.size());
    std::iota(expected.begin(), expected.end(), grid.rank_offset());
    ASSERT_EQ(ranks, expected);
  }
}

// Two ranks share a group exactly when they agree in all other dims.
TEST(GridTest, MembersAgreeInTheOtherDims) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const Grid grid = random_grid(random);
    const std::vector<std::string> dims = random_dims(grid, random);
    std::size_t size = 1;
    for (const Dim& dim : grid.dims())
      if (std::count(dims.begin(), dims.end(), dim.name)) size *= dim.size;
    for (const auto& group : grid.groups(dims)) {
      ASSERT_EQ(group.size(), size);
      for (const Dim& dim : grid.dims()) {
        if (std::count(dims.begin(), dims.end(), dim.name)) continue;
        for (int rank : group) ASSERT_EQ(grid.coord(rank, dim.name), grid.coord(group[0], dim.name));
      }
    }
  }
}

TEST(GridTest, OrderOfDimsDoesNotMatterAndGroupsAscend) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    const Grid grid = random_grid(random);
    std::vector<std::string> dims = random_dims(grid, random);
    const Groups groups = grid.groups(dims);
    const std::string key = grid.key(dims);
    ASSERT_TRUE(std::is_sorted(groups.begin(), groups.end()));
    std::shuffle(dims.begin(), dims.end(), random);
    ASSERT_EQ(grid.groups(dims), groups);
    ASSERT_EQ(grid.key(dims), key);
  }
}

}  // namespace
}  // namespace braid
