#include "comm/control_line.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/strings.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

RunProgress there_and_back(const RunProgress& progress) {
  std::string line = to_control_line(progress);
  EXPECT_EQ(line.back(), '\n');
  line.pop_back();
  return std::get<RunProgress>(parse_control_line(line).value());
}

TEST(ControlLine, ProgressArrivesAsItWas) {
  const RunProgress got = there_and_back({.iteration = 7,
                                          .iterations = std::numeric_limits<std::int64_t>::max(),
                                          .lm_loss = 1.0 / 3,
                                          .tokens_per_s = 1e300,
                                          .seconds_left = 0.1,
                                          .evaluates = true});
  EXPECT_EQ(got.iteration, 7);
  EXPECT_EQ(got.iterations, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(got.lm_loss, 1.0 / 3);
  EXPECT_EQ(got.tokens_per_s, 1e300);
  EXPECT_EQ(got.seconds_left, 0.1);
  EXPECT_TRUE(got.evaluates);
}

TEST(ControlLine, ALossMayBeAbsentOrNoNumber) {
  EXPECT_FALSE(there_and_back({}).lm_loss);
  EXPECT_FALSE(there_and_back({}).evaluates);
  EXPECT_TRUE(std::isnan(there_and_back({.lm_loss = std::nan("")}).lm_loss.value()));
  EXPECT_TRUE(std::isinf(there_and_back({.seconds_left = INFINITY}).seconds_left));
}

TEST(ControlLine, TextIsMarkedLineByLine) {
  std::vector<std::string> lines;
  for (const std::string& line : split(to_control_lines({" a\n\nb b\n"}), '\n'))
    if (!line.empty()) lines.push_back(std::get<PlainText>(parse_control_line(line).value()).text);
  EXPECT_THAT(lines, ElementsAre(" a", "", "b b"));
}

TEST(ControlLine, ASignalArrivesAsItWas) {
  std::string line = to_control_line(EndedBySignal{2});
  line.pop_back();
  EXPECT_EQ(std::get<EndedBySignal>(parse_control_line(line).value()).signal, 2);
  for (const char* wrong : {"0", "128", "x"})
    EXPECT_FALSE(parse_control_line(line.substr(0, line.size() - 1) + wrong)) << wrong;
}

TEST(ControlLine, OrdinaryLinesAndWhatOnlyLooksLikeOne) {
  for (const std::string line : {"", "hello", "\x1e",
                                 "\x1e"
                                 "braid",
                                 "\x1e"
                                 "braid progress",
                                 "\x1e"
                                 "braid progress ",
                                 "\x1e"
                                 "braid progress 1 2 3 4",
                                 "\x1e"
                                 "braid progress 1 2 3 4 5 6",
                                 "\x1e"
                                 "braid progress 1 2 x 4 5",
                                 "\x1e"
                                 "braid progress 1 99999999999999999999 - 4 5",
                                 "\x1e"
                                 "braid progress \xff\xfe 2 3 4 5",
                                 " \x1e"
                                 "braid text a",
                                 "\x1e"
                                 "braid texts"})
    EXPECT_FALSE(parse_control_line(line)) << ::testing::PrintToString(line);
}

}  // namespace
}  // namespace braid
