// Logs that are no logs, and the command around it all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <random>

#include "base/error.h"
#include "doctor/clean_text.h"
#include "doctor/report.h"
#include "support/programs.h"

namespace braid {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

const char* const kError =
    "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/w/a.py\", line 1, in f\n[rank1]: ValueError: "
    "bad\n";

Diagnosis diagnosis_of(const std::string& path) {
  std::vector<std::string> skipped;
  return examine_logs(find_logs({path}), {}, skipped);
}

TEST(HostileLogs, AVeryLongLineHidesNothing) {
  const TemporaryFolder folder;
  const std::string text = "start\n" + std::string(5 << 20, 'x') + "\n" + kError;
  const Diagnosis diagnosis = diagnosis_of(folder.write("long.log", text));
  EXPECT_EQ(diagnosis.cause, Cause::PythonError);
  ASSERT_FALSE(diagnosis.evidence.empty());
  EXPECT_EQ(diagnosis.evidence[0].line, 5u);
}

TEST(HostileLogs, AProgressBarOfMegabytesIsReadToItsEnd) {
  const TemporaryFolder folder;
  std::string text;
  while (text.size() < 3 << 20) text += "Epoch 0:  12%|#  | 120/1000 [00:10<01:20]\r";
  const Diagnosis diagnosis = diagnosis_of(folder.write("bar.log", text + kError));
  EXPECT_EQ(diagnosis.cause, Cause::PythonError);
  EXPECT_EQ(diagnosis.evidence.at(0).line, 3u);
}

TEST(HostileLogs, NulsAndBrokenBytesAreSurvivedAndNotPrinted) {
  const TemporaryFolder folder;
  std::string text = std::string("some text\n\0\0\0\xff\xfe\n", 16) + std::string(200, 'a') + "\n";
  text += std::string(
      "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/w/\xc3(\x01.py\", line 1, in f\n"
      "[rank1]: ValueError: \x1b[31mbad\x07\xf0\x28 value\x9b\n");
  const Diagnosis diagnosis = diagnosis_of(folder.write("odd.log", text));
  EXPECT_EQ(diagnosis.cause, Cause::PythonError);
  const std::string report = to_text(diagnosis);
  for (const char c : report) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t');
  EXPECT_TRUE(nlohmann::json::accept(to_json(diagnosis)));
  EXPECT_THAT(report, HasSubstr("bad"));
}

TEST(HostileLogs, AHoleOfNulsHidesNothing) {
  const TemporaryFolder folder;
  EXPECT_EQ(diagnosis_of(folder.write("hole.log", "text\n" + std::string(40000, '\0') + "\n" + kError)).cause,
            Cause::PythonError);
}

TEST(HostileLogs, EveryLineAnErrorStaysBounded) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 40000; ++i)
    text += "[rank" + std::to_string(i % 5000) +
            "]: Traceback (most recent call last):\nsrun: error: n1: task 3: Killed\nOSError: [Errno 28] No space left "
            "on device\n";
  EXPECT_EQ(diagnosis_of(folder.write("errors.log", text)).cause, Cause::DiskFull);
}

TEST(HostileLogs, RandomBytesNeverCrash) {
  const TemporaryFolder folder;
  std::mt19937 random(3);
  const std::string pieces[] = {"Traceback (most recent call last):",
                                "  File \"",
                                "rank",
                                "[",
                                "]",
                                ":",
                                "\n",
                                "\r",
                                " ",
                                "5",
                                "srun: error: ",
                                "task",
                                "braid: root cause: rank ",
                                "(host ",
                                ") failed in ",
                                "Failures:",
                                "[0]:",
                                "exitcode  : -",
                                "Error: ",
                                "2026-11-15 09:40:29",
                                "\x1b[",
                                "\xff",
                                "CANCELLED AT ",
                                "*** JOB ",
                                "last enqueued NCCL work: ",
                                "failed to pass monitoredBarrier",
                                "//cpu//",
                                "iteration",
                                "num_experts",
                                "E1115 09:4",
                                std::string(1, '\0')};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 400; ++i) text += pieces[random() % std::size(pieces)];
    std::vector<std::string> skipped;
    const Diagnosis diagnosis =
        examine_logs(find_logs({folder.write("a.log", "text\n"), folder.write("b.log", text)}), {}, skipped);
    EXPECT_TRUE(nlohmann::json::accept(to_json(diagnosis)));
    EXPECT_FALSE(to_text(diagnosis).empty());
  }
}

TEST(HostileLogs, CleanTextIsUtf8WithoutControlCharacters) {
  EXPECT_EQ(clean_text("a\x1b[31mb\x1b[0mc"), "abc");
  EXPECT_EQ(clean_text("\x1b]0;title\a!"), "!");
  EXPECT_EQ(clean_text("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(clean_text("\xc3"), "\xef\xbf\xbd");
  EXPECT_EQ(clean_text("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // half of a surrogate pair
  EXPECT_EQ(clean_text("\xc2\x9b!"), "!");
}

class DoctorCommand : public ::testing::Test {
 protected:
  static Finished doctor(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {testing::built_program("braid"), "doctor"});
    return testing::run_program(arguments);
  }
  TemporaryFolder folder_;
};

TEST_F(DoctorCommand, ExitCodesTellWhetherACauseWasFound) {
  EXPECT_EQ(doctor({folder_.write("a.log", kError)}).exit_code, 0);
  EXPECT_EQ(doctor({folder_.write("b.log", "all is well\n")}).exit_code, 0);
  EXPECT_EQ(doctor({folder_.write("c.log", "all is well\n"), "--exit-code", "1"}).exit_code, 1);
  EXPECT_EQ(doctor({folder_.path() + "/none.log"}).exit_code, 2);
  EXPECT_EQ(doctor({}).exit_code, 2);
  const Finished binary = doctor({folder_.write("d.log", std::string(5000, '\0'))});
  EXPECT_EQ(binary.exit_code, 2);
  EXPECT_THAT(binary.err, HasSubstr("is not text"));
}

TEST_F(DoctorCommand, ReadsStandardInput) {
  const std::string log = folder_.write("a.log", kError);
  const Finished run =
      testing::run_program({"sh", "-c", testing::built_program("braid") + " doctor - --json < " + log});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["cause"], "python-error");
  EXPECT_EQ(json["first_rank"], 1);
  EXPECT_EQ(json["evidence"][0]["file"], "stdin");
  EXPECT_EQ(json["evidence"][0]["line"], 3);
}

// Which of two files comes first is told by the times in them.
TEST_F(DoctorCommand, OrdersFilesByTime) {
  const char* const traceback = "Traceback (most recent call last):\n  File \"/w/a.py\", line 1, in f\n";
  folder_.write("rank_0.log", std::string("2026-11-15 10:00:05,000 step\n") + traceback + "ValueError: second\n");
  folder_.write("rank_1.log", std::string("2026-11-15 10:00:01,000 step\n") + traceback + "TypeError: first\n");
  const auto json = nlohmann::json::parse(doctor({folder_.path(), "--json"}).out);
  EXPECT_EQ(json["first_rank"], 1);
  EXPECT_THAT(json["evidence"][0]["text"].get<std::string>(), HasSubstr("TypeError: first"));
}

}  // namespace
}  // namespace braid
