// How TensorBoard itself reads these files is tested in tests/oracles/tensorboard_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdexcept>
#include "log/log_files.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::EndsWith;
using testing::TemporaryFolder;

TEST(EventFile, MakesItsFolderAndStartsANewFileEachTime) {
  TemporaryFolder folder;
  const EventFile first(folder.path() + "/runs/a"), second(folder.path() + "/runs/a");
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(std::filesystem::file_size(first.path()), std::filesystem::file_size(second.path()));
}

// Length 24: the time (9 bytes) and the version (15).
TEST(EventFile, TheVersionRecordIsThereAtOnce) {
  TemporaryFolder folder;
  const EventFile file(folder.path());
  const std::string bytes = testing::read_file(file.path());
  ASSERT_EQ(bytes.size(), 8u + 4 + 24 + 4);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x18\0\0\0\0\0\0\0", 8));
  EXPECT_THAT(bytes.substr(0, 8 + 4 + 24), EndsWith("\x1a\rbrain.Event:2"));
}

TEST(EventFile, ScalarsReachTheFileWithAFlush) {
  TemporaryFolder folder;
  EventFile file(folder.path());
  const auto empty = std::filesystem::file_size(file.path());
  file.add_scalar("lm loss", 1.5, 1);
  EXPECT_EQ(std::filesystem::file_size(file.path()), empty);
  file.flush();
  const auto one = std::filesystem::file_size(file.path());
  EXPECT_GT(one, empty);
  file.flush();
  EXPECT_EQ(std::filesystem::file_size(file.path()), one);
}

TEST(EventFile, AFolderThatCannotBeMadeIsNamed) {
  TemporaryFolder folder;
  const std::string in_the_way = folder.write("file", "");
  try {
    EventFile file(in_the_way + "/runs");
    FAIL() << "no error";
  } catch (const std::runtime_error& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr(in_the_way));
  }
}

}  // namespace
}  // namespace braid
