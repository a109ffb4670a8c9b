// Help pages of a small program, in terminals of several widths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/strings.h"
#include "cli/command.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string weave_help(int columns) {
  std::vector<std::string> paths;
  int count = 1;
  std::string colour;
  return help_page(
      {.name = "weave",
       .help = "Weaves threads of any number into one braid, from the left to the right and back, until they end or a "
               "knot is in the way.",
       .options = {{"paths", &paths,
                    "where threads come from, and where the braid goes; with --dry only the first of them",
                    Rules{.usage = "[FROM] TO", .most = 2, .required = true}},
                   {"--count", &count, "how many", Rules{.check = WholeRange{1, 9}}},
                   {"--colour", &colour, "of all threads", Rules{.check = OneOf{{"red", "blue"}}}}},
       .subcommands = {{.name = "undo",
                        .help = "Take a braid apart, thread by thread, and say how long it was before all that began"}},
       .footer = "A footer is a paragraph, which is folded where the terminal ends, wherever that may be; so it is.\n  "
                 "weave --this-line-is-a-command-to-copy and it stays as it is, whatever happens to the others around "
                 "it: FROM TO"},
      columns);
}

TEST(HelpFormat, FoldsAtTheWidthOfTheTerminal) {
  for (const int columns : {60, 80, 100}) {
    std::size_t longest = 0;
    for (const std::string& line : split(weave_help(columns), '\n'))
      if (!line.starts_with("  weave")) longest = std::max(longest, line.size());
    EXPECT_LE(longest, static_cast<std::size_t>(columns));
    EXPECT_GT(longest, static_cast<std::size_t>(columns) - 12);
  }
  EXPECT_THAT(weave_help(60), AllOf(HasSubstr("it stays as it is, whatever happens to the others around it: FROM TO\n"),
                                    HasSubstr("  undo                        Take a braid apart, thread by\n"
                                              "                              thread, and say how long it\n")));
}

TEST(HelpFormat, NamesWhatToGive) {
  EXPECT_THAT(weave_help(80), AllOf(HasSubstr("Usage: weave [OPTIONS] [FROM] TO"), HasSubstr("\n  [FROM] TO  "),
                                    HasSubstr("\n  --count INT in [1 - 9] "), HasSubstr("\n  --colour {red,blue} ")));
}

}  // namespace
}  // namespace braid
