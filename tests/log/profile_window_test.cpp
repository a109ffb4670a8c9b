#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "log/profiling.h"
#include "log/run_log.h"
#include "support/programs.h"

namespace braid {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryFolder;

struct Profiled {
  std::vector<std::string> lines;  // for the user
  bool lost = false;
  std::set<std::string> names;  // of what is in the file
  int products = 0;
};

// Iterations 1 to `iterations`, each of which multiplies two matrices as often as its number says.
Profiled profile(const ProfileConfig& config, int rank, int iterations) {
  Profiled profiled;
  ProfileWindow window(config, rank, c10::kCPU, [&](const std::string& line) { profiled.lines.push_back(line); });
  const at::Tensor x = at::ones({4, 4});
  for (int i = 1; i <= iterations; ++i)
    window.run(i, [&] {
      for (int n = 0; n < i; ++n) at::mm(x, x);
    });
  window.finish();
  profiled.lost = window.lost_output();
  const std::string path = profile_path(config.dir, rank);
  if (!std::filesystem::is_regular_file(path)) return profiled;
  const json file = json::parse(testing::read_file(path));
  for (const json& event : file.at("traceEvents")) {
    const std::string name = event.value("name", "");
    profiled.names.insert(name);
    if (name == "aten::mm") ++profiled.products;
  }
  return profiled;
}

std::vector<std::string> iterations_in(const Profiled& profiled) {
  std::vector<std::string> found;
  for (const std::string& name : profiled.names)
    if (name.starts_with("iteration ")) found.push_back(name);
  return found;
}

TEST(ProfileWindow, RecordsTheIterationsAfterItsStartUpToItsEnd) {
  const TemporaryFolder folder;
  const ProfileConfig config = {.enabled = true, .step_start = 2, .step_end = 4, .dir = folder.path() + "/new"};
  const Profiled profiled = profile(config, 0, 6);
  EXPECT_THAT(iterations_in(profiled), ElementsAre("iteration 3", "iteration 4"));
  EXPECT_EQ(profiled.products, 3 + 4);
  EXPECT_THAT(profiled.lines, ElementsAre("profile of 2 iterations: " + profile_path(config.dir, 0)));
  EXPECT_FALSE(profiled.lost);
}

TEST(ProfileWindow, ARunMayEndInsideIt) {
  const TemporaryFolder folder;
  const Profiled profiled = profile({.enabled = true, .step_start = 2, .step_end = 9, .dir = folder.path()}, 0, 3);
  EXPECT_THAT(iterations_in(profiled), ElementsAre("iteration 3"));
}

TEST(ProfileWindow, OnlyRanksThatAreNamedWriteOne) {
  const TemporaryFolder folder;
  ProfileConfig config = {.enabled = true, .step_start = 0, .step_end = 1, .ranks = "0,3", .dir = folder.path()};
  EXPECT_EQ(profile(config, 3, 1).products, 1);
  EXPECT_THAT(profile(config, 1, 1).names, IsEmpty());
  config.enabled = false;
  EXPECT_THAT(profile(config, 0, 1).lines, IsEmpty());
}

TEST(ProfileWindow, SaysThatItsFileCannotBeWritten) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/file") << "in the way";
  const Profiled profiled =
      profile({.enabled = true, .step_start = 0, .step_end = 1, .dir = folder.path() + "/file"}, 0, 2);
  EXPECT_TRUE(profiled.lost);
  EXPECT_THAT(profiled.lines, ElementsAre(HasSubstr("cannot write the profile")));
}

}  // namespace
}  // namespace braid
