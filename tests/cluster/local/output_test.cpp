// Where the ranks' output is shown: control lines, and the progress bar on a terminal.
#include <csignal>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/socket.h"
#include "base/strings.h"
#include "cluster/local/rank_process.h"
#include "support/programs.h"
#include "support/pseudo_terminal.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::built_program;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PseudoTerminal;
using testing::read_file;
using testing::run_program;
using ::testing::StartsWith;
using testing::TemporaryFolder;

testing::Finished run_shell(const std::string& script, const std::vector<std::string>& options = {}) {
  std::vector<std::string> command = {built_program("braid"), "run", "-n", "1"};
  command.insert(command.end(), options.begin(), options.end());
  for (const std::string& word : {std::string("--"), std::string("bash"), std::string("-c"), script})
    command.push_back(word);
  return run_program(command);
}

TEST(Output, PlainTextHasNoPrefixAndIsInTheLogFile) {
  TemporaryFolder folder;
  const auto run = run_shell(R"(printf 'a\n\x1ebraid text  table\nb\n')", {"--log-dir", folder.path()});
  EXPECT_EQ(run.out, "[0] a\n table\n[0] b\n");
  EXPECT_EQ(read_file(folder.path() + "/rank_0.log"), "a\n table\nb\n");
}

TEST(Output, ProgressIsNowhereWithoutATerminal) {
  TemporaryFolder folder;
  const auto run = run_shell(R"(printf '\x1ebraid progress 1 2 - 4 5\nb\n')", {"--log-dir", folder.path()});
  EXPECT_EQ(run.out, "[0] b\n");
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(read_file(folder.path() + "/rank_0.log"), "b\n");
}

TEST(Output, ControlLinesCountOnlyOnStdout) {
  EXPECT_EQ(run_shell(R"(printf '\x1ebraid text a\n' >&2)").err,
            "[0] \x1e"
            "braid text a\n");
}

TEST(Output, WhatOnlyLooksLikeAControlLineIsPrinted) {
  EXPECT_EQ(run_shell(R"(printf '\x1ebraid progress soon\n')").out,
            "[0] \x1e"
            "braid progress soon\n");
  EXPECT_EQ(run_shell(R"(printf '\x1e\x00\xff\n')").out, std::string("[0] \x1e\0\xff\n", 8));
}

TEST(Output, BinaryGarbageDoesNotBreakTheLauncher) {
  const auto run = run_shell(
      R"(for start in '\x1e' '\x1ebraid progress ' '\x1ebraid text '; do printf "$start"; head -c 300000 /bin/bash; echo; done; echo over)");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, HasSubstr("\n[0] over\n"));
}

TEST(Output, LostOutputIsReportedAndFailsTheRun) {
  const auto run = run_program({"bash", "-c", built_program("braid") + " run -n 2 -- echo a >/dev/full"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.err, "braid: part of standard output is lost: No space left on device\n");
  const std::string failing = built_program("braid") + " run -n 1 -- bash -c 'echo a; exit 3' >/dev/full";
  EXPECT_EQ(run_program({"bash", "-c", failing}).exit_code, 3);

  const TemporaryFolder logs;
  std::filesystem::create_symlink("/dev/full", logs.path() + "/rank_0.log");
  const auto logged = run_shell("echo a; echo b", {"--log-dir", logs.path()});
  EXPECT_EQ(logged.exit_code, 1);
  EXPECT_EQ(logged.out, "[0] a\n[0] b\n");
  EXPECT_EQ(logged.err,
            fmt::format("braid: cannot write '{}/rank_0.log' any more: No space left on device\n", logs.path()));
}

// A reader that is stuck, and one that is gone.
TEST(Output, TheLastLinesCountToo) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd reader(ends[0]), full(ends[1]);
  std::string text(1 << 20, 'x');
  OutputWriter writer(-1, std::chrono::milliseconds(10));
  writer.write(full.get(), text);
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(writer.finish());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "braid: the last output is lost: its reader did not read it in time\n");
  for (ssize_t left = std::ssize(text); left > 0;) left -= read(reader.get(), text.data(), text.size());

  const TemporaryFolder folder;
  const std::string without_reader = "mkfifo f; exec 3<>f 4>f 3<&-; trap '' PIPE; ";
  // The launcher may detect it before the rank ends or after.
  for (const std::string rank : {"echo a", "bash -c 'trap \"exit 0\" TERM; echo a; sleep 60 & wait'"}) {
    const std::string run = built_program("braid") + " run -n 1 -- " + rank + " >&4";
    EXPECT_EQ(run_program({"bash", "-c", "cd " + folder.path() + "; " + without_reader + run}).exit_code,
              128 + SIGPIPE);
  }
}

// Emulates a terminal: \r and "erase to the end of the line" as the bar uses them.
std::vector<std::string> screen_of(const std::string& shown) {
  std::vector<std::string> lines = {""};
  for (std::size_t i = 0; i < shown.size(); ++i) {
    if (shown.compare(i, 4, "\r\x1b[K") == 0) {
      lines.back().clear();
      i += 3;
    } else if (shown[i] == '\n') {
      lines.emplace_back();
    } else if (shown[i] != '\r') {
      lines.back() += shown[i];
    }
  }
  return lines;
}

class OutputOnATerminal : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Fd(posix_openpt(O_RDWR | O_NOCTTY))) GTEST_SKIP() << "no pseudo terminals here";
  }

  static std::string shown_of(const std::string& command) {
    return run_program({"script", "-qec", "stty cols 80; " + command, "/dev/null"}).out;
  }
};

TEST_F(OutputOnATerminal, TheBarStaysBelowOtherOutputAndIsGoneAtTheEnd) {
  const PseudoTerminal terminal;
  const std::string erase = "\r\x1b[K";
  {
    OutputWriter writer(terminal.fd());
    writer.show({.iteration = 1, .iterations = 2});
    const std::string first = terminal.shown_until(to_line({.iteration = 1, .iterations = 2}, 75));
    EXPECT_THAT(first, StartsWith(erase));
    writer.write(terminal.fd(), "other\n");
    const std::string bar_again = erase + to_line({.iteration = 1, .iterations = 2}, 75);
    EXPECT_EQ(terminal.shown_until(bar_again), erase + "other\r\n" + bar_again);
    writer.show({.iteration = 2, .iterations = 2});
    terminal.shown_until(erase + to_line({.iteration = 2, .iterations = 2}, 75));
  }
  EXPECT_EQ(terminal.shown(), erase);
}

// An update that comes too soon after a redraw waits, and only the last one is drawn.
TEST_F(OutputOnATerminal, TheBarIsDrawnAtMostTenTimesASecond) {
  const PseudoTerminal terminal;
  OutputWriter writer(terminal.fd());
  const auto start = std::chrono::steady_clock::now();
  writer.show({.iteration = 1, .iterations = 100});
  terminal.shown_until(to_line({.iteration = 1, .iterations = 100}, 75));
  for (int i = 2; i <= 100; ++i) writer.show({.iteration = i, .iterations = 100});
  terminal.shown_until(to_line({.iteration = 100, .iterations = 100}, 75));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(100));
}

TEST_F(OutputOnATerminal, AMockRunDrawsItsBarAndEndsWithItsSummary) {
  const std::string shown = shown_of(built_program("mock_run") + " 2 40 20");
  EXPECT_THAT(shown, HasSubstr("/40 ["));
  EXPECT_THAT(shown, Not(HasSubstr("\x1e")));
  const auto screen = screen_of(shown);
  EXPECT_THAT(screen, ::testing::Contains(HasSubstr("run ended")));
  for (const std::string& line : screen) EXPECT_THAT(line, Not(HasSubstr("/40 ["))) << shown;
}

TEST_F(OutputOnATerminal, LogLinesFoldBetweenTheirFieldsAndOnlyThere) {
  const std::string run = built_program("mock_run") + " 2 20 1";
  for (const std::string& line : screen_of(shown_of(run))) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(shown_of(run), ContainsRegex("\\] iteration       10/      20 [|].*[|]\r\n    [a-z]"));
  EXPECT_THAT(shown_of(run + " | tee /dev/null"),
              ContainsRegex("iteration       10/      20 [|].*nan iterations:   0 [|]"));
}

TEST_F(OutputOnATerminal, NoBarWhenOutputGoesThroughAPipe) {
  const std::string shown = shown_of(built_program("mock_run") + " 2 40 20 | tee /dev/null");
  EXPECT_THAT(shown, AllOf(HasSubstr("run ended"), Not(HasSubstr("/40 ["))));
}

TEST(Output, WithoutBraidsLauncherTheSummaryIsPlainAndThereIsNoBar) {
  const auto run = run_program(
      {built_program("mock_run"), "1", "12", "1"},
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}});
  EXPECT_THAT(run.out, AllOf(HasSubstr("\nrun ended "), Not(HasSubstr("\x1e"))));
  EXPECT_EQ(run.err, "");
}

}  // namespace
}  // namespace braid
