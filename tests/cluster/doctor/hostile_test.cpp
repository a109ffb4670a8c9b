// Logs that are no logs, and the command around it all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "base/error.h"
#include "base/utf8.h"
#include "cluster/doctor/line.h"
#include "cluster/doctor/report.h"
#include "cluster/doctor/rules.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
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

TEST(HostileLogs, TheLastLineMayLackItsEnd) {
  const TemporaryFolder folder;
  std::string text = kError;
  text.pop_back();
  EXPECT_EQ(diagnosis_of(folder.write("cut.log", text)).evidence.at(0).text, "[rank1]: ValueError: bad");
}

TEST(HostileLogs, AHoleOfNulsHidesNothing) {
  const TemporaryFolder folder;
  EXPECT_EQ(diagnosis_of(folder.write("hole.log", "text\n" + std::string(40000, '\0') + "\n" + kError)).cause,
            Cause::PythonError);
}

TEST(HostileLogs, MegabytesOfNulsAtTheBeginningHideNothing) {
  const TemporaryFolder folder;
  EXPECT_EQ(diagnosis_of(folder.write("cut.log", std::string(5'000'000, '\0') + "\n" + kError)).cause,
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
  std::vector<std::string> pieces = {"  File \"",
                                     "rank",
                                     "[",
                                     "]",
                                     ":",
                                     " ",
                                     "5",
                                     "(host ",
                                     ") failed in ",
                                     "[0]:",
                                     "exitcode  : -",
                                     "2026-11-15 09:40:29",
                                     "1115 09:40:29",
                                     "E1115 09:4",
                                     "\x1b[",
                                     "\x1b]",
                                     "\xff",
                                     "task",
                                     "*** JOB ",
                                     "//cpu//",
                                     "iteration",
                                     "braid:",
                                     std::string(1, '\0')};
  pieces.insert(pieces.end(), 20, "\n");
  pieces.insert(pieces.end(), 5, "\r");
  for (const Rule& rule : rules().lines) {
    pieces.emplace_back(rule.anchor);
    pieces.insert(pieces.end(), rule.also.begin(), rule.also.end());
  }
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 400; ++i) text += pieces[random() % pieces.size()];
    std::vector<std::string> skipped;
    const Diagnosis diagnosis =
        examine_logs(find_logs({folder.write("a.log", "text\n"), folder.write("b.log", text)}), {}, skipped);
    EXPECT_TRUE(nlohmann::json::accept(to_json(diagnosis)));
    EXPECT_FALSE(to_text(diagnosis).empty());
  }
}

Diagnosis diagnosis_of_text(const std::string& text) {
  const TemporaryFolder folder;
  return diagnosis_of(folder.write("job.log", text));
}

TEST(HostileLogs, AShortTimeAloneInALineIsSurvived) {
  const Diagnosis diagnosis =
      diagnosis_of_text("[rank3]: 1115 09:40:29\nTraceback (most recent call last):\n1115 09:40:29\n");
  EXPECT_EQ(diagnosis.cause, Cause::PythonError);
}

TEST(HostileLogs, BraidThatSaysNothingIsSurvived) {
  EXPECT_EQ(diagnosis_of_text("braid: \n  fix:   x\n").cause, Cause::BraidFailure);
}

// Each such line may look back over all that was read last; together they must not.
TEST(HostileLogs, MismatchesOfManyWeightsTakeNoTime) {
  std::string text = "fp8: None\n";
  for (int i = 0; i < 100000; ++i) text += "Weight mismatch detected: layer " + std::to_string(i) + "\n";
  text += std::string(60000, ' ') + "\n";
  const std::clock_t start = std::clock();
  EXPECT_EQ(diagnosis_of_text(text).cause, Cause::WeightLoadMismatch);
  EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC);  // of the processor: 0.1 s, or minutes
}

TEST(HostileLogs, AWordThatFillsALineTakesNoTime) {
  std::string line = "None";
  while (line.size() < 4 << 20) line += " fp8";
  const std::clock_t start = std::clock();
  EXPECT_FALSE(mentions_fp8(line));
  EXPECT_TRUE(mentions_fp8(line + "\nfp8\n"));
  EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC);
}

TEST(Judgement, ALogThatEndsInsideATracebackTellsOfIt) {
  const Diagnosis diagnosis = diagnosis_of_text(
      "starting\n[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/w/a.py\", line 1, in main\n"
      "[rank1]:     train()\n[rank1]:   File \"/w/b.py\", line 7, in train\n");
  EXPECT_TRUE(diagnosis.failed);
  EXPECT_EQ(diagnosis.cause, Cause::PythonError);
  EXPECT_EQ(diagnosis.first_rank, 1);
  ASSERT_FALSE(diagnosis.evidence.empty());
  EXPECT_EQ(diagnosis.evidence[0].line, 5u);
  EXPECT_EQ(diagnosis.evidence[0].text, "File \"/w/b.py\", line 7, in train");
  EXPECT_THAT(diagnosis.explanation, HasSubstr("the log ends inside its traceback"));
}

TEST(Judgement, ATracebackWithoutAnEndThatTrainingOutlivedIsNoCause) {
  std::string text = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/w/a.py\", line 1, in main\n";
  for (int i = 1; i < 9; ++i) text += "[rank0]:  iteration " + std::to_string(i) + " | lm loss: 1.0\n";
  EXPECT_FALSE(diagnosis_of_text(text).failed);
}

TEST(Judgement, AnErrorsOwnLineIsOneBehindAPrefixToo) {
  for (const char* line : {"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA error: out of memory",
                           "2026-11-15 10:00:01,000 ERROR trainer: torch.OutOfMemoryError: CUDA out of memory.",
                           "  what():  CUDA out of memory. Tried to allocate 2.00 GiB",
                           "terminate called after throwing an instance of 'c10::OutOfMemoryError'",
                           "n1:41:52 [3] init.cc:11 NCCL WARN Cuda failure 2 'out of memory'"})
    EXPECT_EQ(diagnosis_of_text(std::string("start\n") + line + "\n").cause, Cause::GpuOom) << line;
}

TEST(Judgement, TheExitThatFailedIsTold) {
  const Diagnosis diagnosis = diagnosis_of_text(
      "some text\nsrun: error: n1: task 0: Exited with exit code 0\n"
      "srun: error: n1: tasks 1-2: Exited with exit code 7\n");
  EXPECT_EQ(diagnosis.exit_code, 7);
  EXPECT_EQ(diagnosis.evidence.at(0).line, 3u);
}

TEST(Judgement, AKeyInTheStoreWithoutARankNamesNobody) {
  const Diagnosis diagnosis = diagnosis_of_text(
      "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"/w/a.py\", line 1, in f\n"
      "[rank0]: torch.distributed.DistStoreError: wait timeout after 100ms, keys: //cpu//7\n");
  EXPECT_THAT(diagnosis.explanation, Not(HasSubstr("did not arrive")));
}

// Nothing that one file said is held against the next.
TEST(Judgement, FilesAreReadApart) {
  const TemporaryFolder folder;
  folder.write("a.log",
               "Traceback (most recent call last):\n  File \"/w/a.py\", line 1, in f\nKeyError: 'x'\n\n"
               "During handling of the above exception, another exception occurred:\n");
  folder.write("b.log",
               "Traceback (most recent call last):\n  File \"/w/a.py\", line 1, in f\n"
               "torch.OutOfMemoryError: CUDA out of memory.\n");
  const Diagnosis diagnosis = diagnosis_of(folder.path());
  EXPECT_EQ(diagnosis.cause, Cause::PythonError);
  EXPECT_THAT(diagnosis.explanation, HasSubstr("KeyError: 'x'"));
}

// An uncaught exception belongs to a lost connection a few lines below it, but not to one in another file.
TEST(Judgement, LinesOfTwoFilesAreNotNear) {
  const std::string crash = "terminate called after throwing an instance of 'std::length_error'\n";
  const std::string lost = "RuntimeError: [pair.cc:589] Read error [10.0.0.1]:25266: Connection reset by peer\n";
  const TemporaryFolder folder, together;
  folder.write("a.log", crash);
  folder.write("b.log", lost);
  EXPECT_EQ(diagnosis_of(folder.path()).cause, Cause::Segfault);
  together.write("a.log", crash + lost);
  EXPECT_EQ(diagnosis_of(together.path()).cause, Cause::Network);
}

TEST(FolderOfLogs, AFileThatCannotBeReadIsLeftOut) {
  const TemporaryFolder folder;
  folder.write("rank_0.log", "text\n");
  folder.write("rank_1.log", kError);
  const std::vector<LogFile> logs = find_logs({folder.path()});
  std::filesystem::remove(folder.path() + "/rank_0.log");
  std::vector<std::string> skipped;
  EXPECT_EQ(examine_logs(logs, {}, skipped).cause, Cause::PythonError);
  EXPECT_EQ(skipped, std::vector{folder.path() + "/rank_0.log"});
}

TEST(FolderOfLogs, RecipesMetricsAndCheckpointsAreNoLogs) {
  const TemporaryFolder folder;
  for (const char* name : {"recipe.yaml", "metrics.jsonl", "trace.json", "model.safetensors", "tfevents.1.host"})
    folder.write(name, kError);
  EXPECT_THROW(find_logs({folder.path()}), ConfigError);
  folder.write("rank_0.log", "iteration        1/      60 | lm loss: 3.9E+00 |\n");
  std::vector<std::string> skipped;
  EXPECT_EQ(examine_logs(find_logs({folder.path()}), {}, skipped).cause, Cause::Unknown);
  EXPECT_EQ(find_logs({folder.path() + "/recipe.yaml"}).size(), 1u);  // if it is asked for
}

TEST(FolderOfLogs, AFolderInItThatCannotBeReadIsLeftOut) {
  if (geteuid() == 0) GTEST_SKIP() << "root reads everything";
  const TemporaryFolder folder;
  folder.write("rank_1.log", kError);
  const std::string locked = folder.path() + "/locked";
  std::filesystem::create_directory(locked);
  std::filesystem::permissions(locked, std::filesystem::perms::none);
  std::vector<std::string> skipped;
  EXPECT_EQ(examine_logs(find_logs({folder.path()}), {}, skipped).cause, Cause::PythonError);
  EXPECT_EQ(skipped, std::vector{locked});
  std::filesystem::permissions(locked, std::filesystem::perms::owner_all);
}

TEST(HostileLogs, CleanTextIsUtf8WithoutControlCharacters) {
  EXPECT_EQ(clean_text("a\x1b[31mb\x1b[0mc"), "abc");
  EXPECT_EQ(clean_text("\x1b]0;title\a!"), "!");
  EXPECT_EQ(clean_text("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ text"), "link text");
  EXPECT_EQ(clean_text("\x1b]0;never ended"), "");
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
  EXPECT_EQ(doctor({folder_.write("b.log", "all is well\n")}).exit_code, 1);
  const std::string empty = folder_.write("empty.log", "");
  EXPECT_THAT(doctor({empty}).out, HasSubstr("not-launched: "));
  EXPECT_THAT(doctor({empty, "--exit-code", "137"}).out, HasSubstr("killed: "));
  EXPECT_EQ(doctor({folder_.write("e.log", "all is well\n"), "--exit-code", "0"}).exit_code, 0);
  EXPECT_EQ(doctor({folder_.write("f.log", "")}).exit_code, 0);  // not launched
  EXPECT_EQ(doctor({folder_.write("c.log", "all is well\n"), "--exit-code", "1"}).exit_code, 1);
  EXPECT_EQ(doctor({folder_.path() + "/none.log"}).exit_code, 2);
  EXPECT_EQ(doctor({std::string(5000, 'x')}).exit_code, 2);
  EXPECT_EQ(doctor({}).exit_code, 2);
  EXPECT_EQ(doctor({"/dev/zero"}).exit_code, 2);
  const Finished binary = doctor({folder_.write("d.log", std::string(5000, '\0'))});
  EXPECT_EQ(binary.exit_code, 2);
  EXPECT_THAT(binary.err, HasSubstr("is not text"));
}

TEST_F(DoctorCommand, UnderstandsExitCodesAsSacctWritesThem) {
  const std::string log = folder_.write("a.log", "all is well\n");
  const auto code = [&](const char* given) {
    return nlohmann::json::parse(doctor({log, "--json", "--exit-code", given}).out)["exit_code"];
  };
  EXPECT_EQ(code("0:9"), 137);
  EXPECT_EQ(code("3:0"), 3);
  EXPECT_EQ(code("-9"), -9);
  EXPECT_EQ(doctor({log, "--exit-code", "x"}).exit_code, 2);
}

// 9 is no SIGKILL: that would be 137, or 0:9.
TEST_F(DoctorCommand, ACodeBelow128IsTheProgramsOwn) {
  const std::string log = folder_.write("a.log", "all is well\n");
  for (const char* code : {"9", "9:0"})
    EXPECT_THAT(doctor({log, "--exit-code", code}).out,
                AllOf(HasSubstr("Exit code 9 was chosen by the"), Not(HasSubstr("SIGKILL"))));
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
