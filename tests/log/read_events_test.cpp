// That TensorBoard reads what EventFile writes is tested in tests/oracles/tensorboard_test.py; here it is read back.
#include <gtest/gtest.h>
#include "base/error.h"
#include "log/log_files.h"
#include "support/programs.h"

namespace braid {
namespace {

using testing::TemporaryFolder;

std::string two_scalars(const TemporaryFolder& folder) {
  EventFile file(folder.path());
  file.add_scalar("lm loss", 1.5, 10);
  file.add_scalar("mem/host", std::numeric_limits<double>::infinity(), 1LL << 40);
  file.flush();
  return testing::read_file(file.path());
}

TEST(ReadEvents, GivesBackWhatWasWritten) {
  const TemporaryFolder folder;
  const EventFileContents contents = parse_events(two_scalars(folder));
  EXPECT_FALSE(contents.cut);
  ASSERT_EQ(contents.scalars.size(), 2u);
  EXPECT_EQ(contents.scalars[0].tag, "lm loss");
  EXPECT_EQ(contents.scalars[0].step, 10);
  EXPECT_EQ(contents.scalars[0].value, 1.5);
  EXPECT_GT(contents.scalars[0].wall_time, 1.7e9);
  EXPECT_EQ(contents.scalars[1].step, 1LL << 40);
  EXPECT_TRUE(std::isinf(contents.scalars[1].value));
}

// A kill may cut a file anywhere; only the last record is then lost.
TEST(ReadEvents, ReadsWhatPrecedesACut) {
  const TemporaryFolder folder;
  const std::string bytes = two_scalars(folder);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const EventFileContents contents = parse_events(std::string_view(bytes).substr(0, size));
    EXPECT_LT(contents.scalars.size(), 2u) << size;
  }
  const EventFileContents cut = parse_events(std::string_view(bytes).substr(0, bytes.size() - 1));
  EXPECT_TRUE(cut.cut);
  EXPECT_EQ(cut.scalars.size(), 1u);
}

TEST(ReadEvents, StopsAtADamagedByte) {
  const TemporaryFolder folder;
  const std::string bytes = two_scalars(folder);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    const EventFileContents contents = parse_events(damaged);
    EXPECT_TRUE(contents.cut) << at;
    EXPECT_LT(contents.scalars.size(), 2u) << at;
  }
}

TEST(ReadEvents, AMissingFileIsNamed) { EXPECT_THROW(read_events("/nowhere/events"), DataError); }

}  // namespace
}  // namespace braid
