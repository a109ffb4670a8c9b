#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include "base/terminal.h"
#include "cluster/local/rank_process.h"
#include "support/pseudo_terminal.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using testing::PseudoTerminal;

const RunProgress kHalfway = {
    .iteration = 50, .iterations = 100, .lm_loss = 2.34567, .tokens_per_s = 65536.4, .seconds_left = 3723.9};

TEST(ProgressBar, ShowsIterationLossSpeedAndTimeLeft) {
  EXPECT_EQ(to_line(kHalfway, 81), "  50/100 [##########----------] lm loss 2.3457 | 65536 tokens/s | 1:02:03 left");
}

TEST(ProgressBar, FitsTheTerminal) {
  for (int columns = 0; columns <= 200; ++columns)
    EXPECT_LE(to_line(kHalfway, columns).size(), static_cast<std::size_t>(std::max(columns - 3, 0))) << columns;
  EXPECT_EQ(to_line(kHalfway, 59), "  50/100 lm loss 2.3457 | 65536 tokens/s | 1:02:03 left");  // no room for a bar
  EXPECT_EQ(to_line(kHalfway, 12), "  50/100 ");
}

TEST(ProgressBar, TheBarFillsUp) {
  EXPECT_THAT(to_line({.iteration = 0, .iterations = 8}, 60), HasSubstr(" [-----"));
  EXPECT_THAT(to_line({.iteration = 8, .iterations = 8}, 60), HasSubstr("#####]"));
}

TEST(ProgressBar, UnknownTimeLeft) {
  EXPECT_THAT(to_line({.seconds_left = std::numeric_limits<double>::infinity()}, 80), HasSubstr("] ? left"));
}

TEST(StatusLine, IsRedrawnOnItsLineAndClearedOnce) {
  const PseudoTerminal terminal;
  StatusLine bar(terminal.fd());
  bar.clear();
  EXPECT_EQ(terminal.shown(), "");
  const std::string line = to_line(kHalfway, bar.columns());
  bar.draw(line);
  bar.draw(line);
  const std::string drawn = "\r\x1b[K" + line;
  EXPECT_EQ(terminal.shown(), drawn + drawn);
  bar.clear();
  bar.clear();
  EXPECT_EQ(terminal.shown(), "\r\x1b[K");
}

TEST(StatusLine, IsClearedAtTheEnd) {
  const PseudoTerminal terminal;
  { StatusLine(terminal.fd()).draw("1:02:03 left"); }
  EXPECT_THAT(terminal.shown(), ::testing::EndsWith("left\r\x1b[K"));
}

TEST(StatusLine, PrintsNothingWithoutATerminal) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_NONBLOCK), 0);
  { StatusLine(pipe[1]).draw("1:02:03 left"); }
  char byte = 0;
  EXPECT_EQ(::read(pipe[0], &byte, 1), -1);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace braid
