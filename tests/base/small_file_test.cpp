// Errors of the system are tested with a run: tests/cli/read_errors_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include "base/error.h"
#include "base/files.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

TEST(SmallFile, IsReadAsAWholeOrRefusedByName) {
  const std::string folder = std::filesystem::temp_directory_path(),
                    path = fmt::format("{}/braid-small-file-{}", folder, getpid()), none = path + "-none";
  std::ofstream(path) << std::string("{}\n\0", 4);
  EXPECT_EQ(find_small_file(path, 4), std::string("{}\n\0", 4));
  EXPECT_EQ(find_small_file(none, 4), std::nullopt);
  EXPECT_EQ(find_small_file(path + "/below", 4), std::nullopt);
  EXPECT_THAT(
      testing::error_of([&] { read_small_file(none, 4, "make it"); }),
      ::testing::AllOf(HasSubstr("cannot read '" + none + "': No such file or directory"), HasSubstr("make it")));
  EXPECT_THAT(testing::error_of([&] { find_small_file(path, 3); }), HasSubstr("more than the 3"));
  EXPECT_THAT(testing::error_of([&] { find_small_file(folder, 3); }), HasSubstr("not a regular file"));
  // The system reports a size of 0 for files below /proc, so this one seems to grow.
  EXPECT_THAT(testing::error_of<DataError>([] { find_small_file("/proc/self/status", 3); }),
              HasSubstr("changed while it was read"));
  EXPECT_EQ(kind_of_file(none), FileKind::None);
  EXPECT_EQ(kind_of_file(folder), FileKind::Folder);
  EXPECT_EQ(kind_of_file(path), FileKind::Other);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace braid
