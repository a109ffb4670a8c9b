#include "base/files.h"
#include <gtest/gtest.h>

namespace braid {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Every reader finds all of the text, any number of times, even if it exceeds a pipe's buffer.
TEST(Reopenable, KeepsWhatCameFromAPipe) {
  const std::string text(300'000, 'x');
  const std::string path = reopenable("/dev/stdin", text);
  EXPECT_NE(path, "/dev/stdin");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(text_of(path), text);
  EXPECT_EQ(text_of(reopenable("/dev/fd/63", "")), "");
}

TEST(Reopenable, AFileStaysWhereItIs) {
  const std::string file = std::filesystem::read_symlink("/proc/self/exe");
  EXPECT_EQ(reopenable(file, "anything"), file);
}

TEST(NearestExisting, IsTheFolderAbove) {
  EXPECT_EQ(nearest_existing("/"), "/");
  EXPECT_EQ(nearest_existing("/proc/no-such-folder/a/b"), "/proc");
}

}  // namespace
}  // namespace braid
