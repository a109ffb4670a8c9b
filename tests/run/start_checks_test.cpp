// What a start would do, by the names of the files in its folder.
#include "run/start_checks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class FindStart : public ::testing::Test {
 protected:
  // A file of the save folder, with the folders above it.
  void write(const std::string& name, const std::string& text = "") const {
    const fs::path path = fs::path(root()) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::string root() const { return folder.path() + "/ckpt"; }
  CheckpointConfig config(InitConfig init) const { return {.save = root(), .init = std::move(init), .load = root()}; }

  const testing::TemporaryFolder folder;
  const InitConfig init = {.vision = "/data/vision", .language = "/data/language/"};
};

TEST_F(FindStart, InitializesAFolderWithoutACheckpoint) {
  const RunStart start = find_start(config(init));
  EXPECT_FALSE(start.resumes);
  EXPECT_EQ(start.words,
            "starts with the weights of /data/vision (checkpoint.init.vision) and /data/language "
            "(checkpoint.init.language), since " +
                root() + " has no complete checkpoint yet");
  EXPECT_EQ(find_start(config({})).words, "starts from scratch, since " + root() + " has no checkpoint yet");
  EXPECT_EQ(find_start({.load_nemotron = "n"}).words, "starts with the weights of n (checkpoint.load_nemotron)");
  EXPECT_EQ(find_start({}).words, "");
}

TEST_F(FindStart, SaysThatAFirstSaveWasInterrupted) {
  write(".iter_0000002.partial/__0_0.distcp");
  EXPECT_THAT(find_start(config(init)).words, HasSubstr("has no complete checkpoint, only an interrupted save"));
}

TEST_F(FindStart, ResumesAndSaysThatTheSourceIsNotUsed) {
  write("iter_0000002/.metadata");
  write("latest_checkpointed_iteration.txt", "2");
  write(".iter_0000004.partial/__0_0.distcp");
  const RunStart start = find_start(config({.nemotron = "/no/source"}));
  EXPECT_TRUE(start.resumes);
  EXPECT_EQ(start.words, "resumes from " + root() +
                             "/iter_0000002, and does not use "
                             "checkpoint.init.nemotron=/no/source, which no longer exists");
  EXPECT_THAT(find_start(config({.nemotron = folder.path()})).words, Not(HasSubstr("no longer exists")));
  const CheckpointConfig partly = {.load = root(), .load_optimizer = false, .load_rng = false};
  EXPECT_THAT(find_start(partly).words,
              HasSubstr("/iter_0000002 without its optimizer (load_optimizer=false), random"));
}

// A save that was complete but not yet in the tracker counts; damage does not count as "no checkpoint".
TEST_F(FindStart, NeverTakesDamageForAnEmptyFolder) {
  write("iter_0000002/.metadata");
  write("iter_0000002/.tracker_pending");
  EXPECT_TRUE(find_start(config(init)).resumes);
  fs::remove(root() + "/iter_0000002/.metadata");
  const auto error = [&] { return error_of<DataError>([&] { find_start(config(init)); }); };
  EXPECT_THAT(error(), AllOf(HasSubstr("iter_0000002 has no .metadata: it is damaged"), HasSubstr("remove it")));
  fs::remove_all(root() + "/iter_0000002");
  write("latest_checkpointed_iteration.txt", "2");
  EXPECT_THAT(error(), HasSubstr("names iteration 2, but there is no"));
  write("latest_checkpointed_iteration.txt", "nonsense");
  EXPECT_THAT(error(), HasSubstr("'nonsense'"));
}

}  // namespace
}  // namespace braid
