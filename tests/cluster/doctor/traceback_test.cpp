// Tracebacks are put together line by line, whoever writes in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cluster/doctor/diagnosis_of_text.h"
#include "cluster/doctor/line.h"

namespace braid {
namespace {

using testing::diagnosis_of_text;
using ::testing::HasSubstr;
using testing::slug_of;

const char* const kHead = "Traceback (most recent call last):\n";

// Two ranks fail at once, and their lines come one after the other. The data loader of the first to end is the cause.
TEST(Tracebacks, AreToldApartByWriter) {
  const std::string head = kHead;
  const Diagnosis diagnosis = diagnosis_of_text(
      "[rank1]: " + head + "[rank2]: " + head +
      "[rank1]:   File \"/w/a.py\", line 1, in f\n[rank2]:   File \"/w/dataset.py\", line 9, in __getitem__\n"
      "[rank1]:     f()\n[rank3]: something else\n[rank2]: KeyError: 'x'\n"
      "[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n[rank0]: RuntimeError: Connection reset by peer\n");
  EXPECT_EQ(slug_of(diagnosis), "data-rank-cascade");
  EXPECT_EQ(diagnosis.first_rank, 2);
  EXPECT_THAT(diagnosis.explanation, HasSubstr("KeyError: 'x'"));
  ASSERT_GE(diagnosis.evidence.size(), 2u);
  EXPECT_EQ(diagnosis.evidence[0].line, 7u);
  EXPECT_EQ(diagnosis.evidence[1].text, "File \"/w/dataset.py\", line 9, in __getitem__");
}

TEST(Tracebacks, IndentedOnesEndWithTheirException) {  // as in torchrun's failure block
  const Diagnosis diagnosis = diagnosis_of_text("  " + std::string(kHead) +
                                                "    File \"/w/a.py\", line 1, in f\n      f()\n  ValueError: boom\n");
  EXPECT_THAT(diagnosis.explanation, HasSubstr("ValueError: boom"));
  EXPECT_EQ(diagnosis.evidence.at(1).line, 2u);
}

TEST(Tracebacks, LinesOfOthersInBetweenAreLeftAlone) {
  const Diagnosis diagnosis = diagnosis_of_text(
      kHead + std::string("  File \"/w/a.py\", line 1, in f\nNCCL version 2.27.3\nWARNING: slow\nAssertionError\n"));
  EXPECT_THAT(diagnosis.explanation, HasSubstr("AssertionError"));
  EXPECT_EQ(diagnosis.evidence.at(0).line, 5u);
}

TEST(Tracebacks, FoldersOfUsersSayNothing) {
  const std::string lost = "[rank0]: RuntimeError: Connection reset by peer\n";
  for (const auto& [path, cause] : {std::pair{"/mnt/datasets/me/code/src/train.py", "python-error"},
                                    {"/w/dataset.py", "data-rank-cascade"},
                                    {"/data/x.py", "python-error"},
                                    {"/w/data/x.py", "data-rank-cascade"}})
    EXPECT_EQ(slug_of(diagnosis_of_text("[rank1]: " + std::string(kHead) + "[rank1]:   File \"" + path +
                                        "\", line 1, in main\n[rank1]: ValueError: x\n" + lost)),
              cause)
        << path;
}

TEST(Tracebacks, ExceptionsLookLikeExceptions) {
  for (const char* line :
       {"ValueError: x", "AssertionError", "torch.cuda.OutOfMemoryError: CUDA", "StopIteration", "KeyboardInterrupt"})
    EXPECT_FALSE(exception_type(line).empty()) << line;
  for (const char* line : {"", "INFO: x", "hello: world", "Some words here", "http://x", "ERROR: x", "12: x"})
    EXPECT_TRUE(exception_type(line).empty()) << line;
}

}  // namespace
}  // namespace braid
