#include "plan/show.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace braid {
namespace {

using testing::HasSubstr;
using testing::Not;

Topology eight_ranks() {
  return Topology({.modules = {{.name = "images", .kind = ModuleKind::Encoder, .tp = 2, .dp = 2},
                               {.name = "language", .tp = 2, .dp = 2, .ep = 4}}},
                  {.micro_batch = 1, .global_batch = 2, .num_experts = 4});
}

std::size_t count_lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(ShowTest, TablesOfASmallWorldHaveEverything) {
  const std::string text = show_topology(eight_ranks());
  EXPECT_THAT(text, HasSubstr("world of 8 ranks, 2 modules\n"));
  EXPECT_THAT(text, HasSubstr("language  language  4-7    2   1   2   1   1        4   1\n"));
  EXPECT_THAT(text, HasSubstr("5            language  1   0   0   0   0        1   0\n"));
  EXPECT_THAT(text, HasSubstr("images.dp               2      2     [0,2] [1,3]\n"));
  EXPECT_THAT(text, HasSubstr("language.ep             1      4     [4-7]\n"));
  EXPECT_THAT(text, HasSubstr("channels from stage to stage, created after them\n"));
  EXPECT_THAT(text, HasSubstr("images.embeddings           2      2     [0,4] [2,6]\n"));
}

TEST(ShowTest, TablesOfALargeWorldStayShort) {
  const Topology topology({.modules = {{.name = "images", .kind = ModuleKind::Encoder, .dp = 8},
                                       {.name = "language", .tp = 8, .dp = 64, .pp = 2, .ep = 64}}},
                          {.micro_batch = 1, .global_batch = 64, .num_experts = 128});
  const std::string text = show_topology(topology);
  EXPECT_LT(count_lines(text), 70u);
  EXPECT_THAT(text, HasSubstr("language  language  8-1031"));
  EXPECT_THAT(text, HasSubstr("\n...          language\n"));
  EXPECT_THAT(text, HasSubstr("\n1031         language  7   0   63  1 "));
  EXPECT_THAT(text, HasSubstr("language.dp             16     64    [8,16,24,..,512] [9,17,25,..,513] "));
  EXPECT_THAT(text, HasSubstr(" [11,19,27,..,515] ...\n"));
  EXPECT_THAT(text, HasSubstr("language.expt_dp        128    8     [8,72,136,200,264,328,392,456] "));
}

TEST(ShowTest, OneRankHasBothViewsAndItsGroups) {
  const std::string text = show_rank(eight_ranks(), 5);
  EXPECT_THAT(text, HasSubstr("global rank 5 of 8\n"));
  EXPECT_THAT(text, HasSubstr("language  dense   tp=1 cp=0 dp=0 pp=0\n"));
  EXPECT_THAT(text, HasSubstr("language  expert  expt_tp=0 ep=1 expt_dp=0 pp=0\n"));
  EXPECT_THAT(text, HasSubstr("language.dp             0      2     5,7\n"));
  EXPECT_THAT(text, HasSubstr("language.ep             1      4     4-7\n"));
  EXPECT_THAT(text, Not(HasSubstr("images")));
}

TEST(ShowTest, AColocatedRankShowsAllItsModules) {
  const Topology topology(
      {.colocated = true,
       .modules = {{.name = "images", .kind = ModuleKind::Encoder, .dp = 2}, {.name = "language", .tp = 2}}},
      {.micro_batch = 2, .global_batch = 2});
  const std::string text = show_rank(topology, 1);
  EXPECT_THAT(text, HasSubstr("images    dense   tp=0 cp=0 dp=1 pp=0\n"));
  EXPECT_THAT(text, HasSubstr("language  dense   tp=1 cp=0 dp=0 pp=0\n"));
  EXPECT_THAT(show_topology(topology), HasSubstr("world of 2 ranks, 2 modules, colocated\n"));
}

TEST(ShowTest, ARankBeyondTheWorldIsRefused) {
  for (int global_rank : {-1, 8, 9}) {
    try {
      show_rank(eight_ranks(), global_rank);
      FAIL() << "no ConfigError";
    } catch (const ConfigError& e) {
      EXPECT_EQ(e.problems().at(0).what,
                fmt::format("rank {} is out of range: the world has 8 ranks (0-7)", global_rank));
    }
  }
}

TEST(ShowTest, JsonHasEveryRankAndGroup) {
  const Topology topology = eight_ranks();
  const auto json = nlohmann::json::parse(topology_json(topology));
  EXPECT_EQ(json["world_size"], 8);
  EXPECT_EQ(json["colocated"], false);
  const auto& language = json["modules"][1];
  EXPECT_EQ(language["name"], "language");
  EXPECT_EQ(language["kind"], "language");
  EXPECT_EQ(language["rank_offset"], 4);
  EXPECT_EQ(language["expert"]["ep"], 4);
  EXPECT_EQ(language["ranks"].size(), 4u);
  EXPECT_EQ(language["ranks"][1]["global_rank"], 5);
  EXPECT_EQ(language["ranks"][1]["dense"]["tp"], 1);
  EXPECT_EQ(language["ranks"][1]["expert"]["ep"], 1);
  ASSERT_EQ(json["groups"].size(), topology.groups().size());
  EXPECT_EQ(json["groups"][0], nlohmann::json::parse(R"({"module": "images", "key": "tp", "ranks": [0, 1]})"));
}

}  // namespace
}  // namespace braid
