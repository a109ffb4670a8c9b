#include "cluster/doctor/traceback.h"

#include <gtest/gtest.h>

#include "cluster/doctor/messages.h"

namespace braid {
namespace {

// Two ranks fail at once, and their lines come one after the other.
TEST(Tracebacks, AreToldApartByWriter) {
  TracebackAssembler assembler;
  assembler.begin(1, {.line = 10});
  assembler.begin(2, {.line = 11});
  EXPECT_TRUE(assembler.feed(1, "  File \"/w/a.py\", line 1, in f", 12).taken);
  EXPECT_TRUE(assembler.feed(2, "  File \"/w/dataset.py\", line 9, in __getitem__", 13).taken);
  EXPECT_TRUE(assembler.feed(1, "    f()", 14).taken);
  EXPECT_FALSE(assembler.feed(3, "something else", 15).taken);
  const auto second = assembler.feed(2, "KeyError: 'x'", 16);
  ASSERT_TRUE(second.ended);
  EXPECT_EQ(second.ended->exception, "KeyError: 'x'");
  EXPECT_TRUE(second.ended->in_data);
  const auto first = assembler.feed(1, "torch.OutOfMemoryError: CUDA out of memory.", 17);
  ASSERT_TRUE(first.ended);
  EXPECT_EQ(first.ended->frame_line, 12u);
  EXPECT_FALSE(first.ended->in_data);
  EXPECT_FALSE(assembler.any_open());
}

TEST(Tracebacks, IndentedOnesEndWithTheirException) {  // as in torchrun's failure block
  TracebackAssembler assembler;
  assembler.begin(-1, {.line = 1});
  assembler.feed(-1, "    File \"/w/a.py\", line 1, in f", 2);
  assembler.feed(-1, "      f()", 3);
  const auto end = assembler.feed(-1, "  ValueError: boom", 4);
  ASSERT_TRUE(end.ended);
  EXPECT_EQ(end.ended->exception, "ValueError: boom");
}

TEST(Tracebacks, LinesOfOthersInBetweenAreLeftAlone) {
  TracebackAssembler assembler;
  assembler.begin(-1, {.line = 1});
  assembler.feed(-1, "  File \"/w/a.py\", line 1, in f", 2);
  EXPECT_FALSE(assembler.feed(-1, "NCCL version 2.27.3", 3).taken);
  EXPECT_FALSE(assembler.feed(-1, "WARNING: slow", 4).taken);
  EXPECT_TRUE(assembler.feed(-1, "AssertionError", 5).ended);
}

TEST(Tracebacks, FoldersOfUsersSayNothing) {
  TracebackAssembler assembler;
  assembler.begin(-1, {.line = 1});
  assembler.feed(-1, "  File \"/mnt/datasets/me/code/src/train.py\", line 1, in main", 2);
  EXPECT_FALSE(assembler.feed(-1, "ValueError: x", 3).ended->in_data);
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
