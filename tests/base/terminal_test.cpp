#include "base/terminal.h"
#include <gtest/gtest.h>
#include "support/pseudo_terminal.h"

namespace braid {
namespace {

TEST(Folded, BreaksBetweenWords) {
  EXPECT_EQ(folded("", 10, "  "), "");
  EXPECT_EQ(folded("one two", 7, "  "), "one two");
  EXPECT_EQ(folded("one two", 6, "  "), "one\n  two");
  EXPECT_EQ(folded("one two three four", 8, "> "), "one two\n> three\n> four");
}

// The width does not include the indent.
TEST(Folded, LeavesWhatCannotBeBroken) {
  EXPECT_EQ(folded("a --very-long-flag b", 8, ""), "a\n--very-long-flag\nb");
  EXPECT_EQ(folded("a b, c d, e f", 8, "", ", "), "a b,\nc d, e f");
}

TEST(Folded, CountsCharactersAndNotBytes) { EXPECT_EQ(folded("żółw żółw", 9, ""), "żółw żółw"); }

// A terminal of 75 columns; the last column stays empty.
TEST(Fitted, NextLinesBeginBehindTheLabel) {
  const testing::PseudoTerminal terminal;
  const std::string words = "a sentence that is just as long as a line, which is folded if more follows";
  ASSERT_EQ(words.size(), 74u);
  EXPECT_EQ(fitted(words, terminal.fd()), words);
  EXPECT_EQ(fitted(words + " up", terminal.fd()), words + "\n  up");
  EXPECT_EQ(fitted("  fix:   " + words + "\nend", terminal.fd()),
            "  fix:   a sentence that is just as long as a line, which is folded if\n         more follows\nend");
  EXPECT_EQ(fitted("  2. " + words, terminal.fd()),
            "  2. a sentence that is just as long as a line, which is folded if more\n     follows");
}

TEST(Fitted, FilesAndPipesGetWholeLines) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string line(200, 'a');
  EXPECT_EQ(fitted(line + " b\n", ends[1]), line + " b\n");
  EXPECT_EQ(columns_of(ends[1]), 80);
  ::close(ends[0]);
  EXPECT_TRUE(has_no_reader(ends[1]));
  ::close(ends[1]);
}

}  // namespace
}  // namespace braid
