// SIGTERM that ranks tell of: a launcher ends the others when one rank has failed, and a scheduler ends them all.
// Lines of different ranks come in any order, so the position of a SIGTERM does not tell which of the two it was.
#include <gtest/gtest.h>
#include "cluster/doctor/diagnosis_of_text.h"

namespace braid {
namespace {

using testing::diagnosis_of_text;
using testing::kNone;
using testing::slug_of;
using testing::with_prefix;

const std::string kStart = "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\n";
const std::string kChildEnded =
    "[rank: 3] Child process with PID 4021 terminated with code 1. Forcefully terminating all other processes to avoid "
    "zombies \xf0\x9f\xa7\x9f\n";
const std::string kOutOfMemory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB.";

std::string sigterm_of(const std::vector<int>& ranks) {
  std::string lines;
  for (const int rank : ranks) lines += "[rank: " + std::to_string(rank) + "] Received SIGTERM: 15\n";
  return lines;
}

std::string traceback_of(const std::string& exception) {
  return "Traceback (most recent call last):\n  File \"/w/train.py\", line 10, in <module>\n    trainer.fit(model)\n" +
         exception + "\n";
}

void expect(const std::string& text, const char* cause, int rank) {
  const Diagnosis diagnosis = diagnosis_of_text(text);
  EXPECT_EQ(slug_of(diagnosis), cause) << text;
  EXPECT_EQ(diagnosis.first_rank.value_or(kNone), rank) << text;
}

TEST(Sigterm, OfOtherRanksDoesNotExcuseAFailure) {
  for (const auto& [exception, cause] : {std::pair{kOutOfMemory, "gpu-oom"}, {"KeyError: 'labels'", "python-error"}})
    for (const std::string prefix : {"", "[rank3]: "})
      for (const std::string& end : {std::string(), kChildEnded})
        for (const std::vector<int>& ranks : {std::vector{2}, {0}, {1, 0, 2}}) {
          const std::string failure = with_prefix(prefix, traceback_of(exception)) + end;
          const int rank = prefix.empty() && end.empty() ? kNone : 3;
          expect(kStart + sigterm_of(ranks) + failure, cause, rank);
          expect(kStart + failure + sigterm_of(ranks), cause, rank);
          expect(kStart + sigterm_of({0}) + failure + sigterm_of(ranks), cause, rank);
        }
}

// What a rank raises when it is told to end does not hide the failure that it was ended for.
TEST(Sigterm, WhatItMakesARankRaiseIsNotTheCause) {
  expect(kStart + sigterm_of({2}) + with_prefix("[rank2]: ", traceback_of("AttributeError: 'loader' is gone")) +
             with_prefix("[rank3]: ", traceback_of("KeyError: 'labels'")),
         "python-error", 3);
  expect(kStart + sigterm_of({2}) + with_prefix("[rank2]: ", traceback_of("lightning.SIGTERMException")) +
             with_prefix("[rank3]: ", traceback_of("KeyError: 'labels'")),
         "python-error", 3);
}

TEST(Sigterm, OfAllRanksIsACancellation) {
  const std::string all = kStart + sigterm_of({0, 1, 2, 3});
  expect(all, "cancelled", kNone);
  for (const std::string exception :
       {"KeyboardInterrupt", "lightning.pytorch.utilities.exceptions.SIGTERMException",
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Terminated.", "KeyError: 'labels'"})
    for (const std::string prefix : {"", "[rank3]: "})
      for (const std::string& end : {std::string(), kChildEnded}) {
        const std::string lines = with_prefix(prefix, traceback_of(exception)) + end;
        expect(all + lines, "cancelled", kNone);
        expect("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-15T12:40:29 ***\n" + all + lines, "cancelled",
               kNone);
      }
}

// Of so many ranks not every line is kept.
TEST(Sigterm, OfAThousandRanksIsACancellation) {
  std::vector<int> ranks(1024);
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::string start = "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/1024\n" + sigterm_of(ranks);
  for (const std::string prefix : {"", "[rank800]: "})
    expect(start + with_prefix(prefix, traceback_of("KeyError: 'labels'")), "cancelled", kNone);
}

TEST(Sigterm, DoesNotExplainAnEmptyFile) {
  expect(kStart + sigterm_of({0}) + with_prefix("[rank3]: ", traceback_of("EOFError: Ran out of input")),
         "python-error", 3);
}

// Only one rank had the time to say so.
TEST(Sigterm, ExplainsProcessesThatAreGone) {
  for (const char* exception : {"KeyboardInterrupt", "lightning.pytorch.utilities.exceptions.SIGTERMException",
                                "RuntimeError: DataLoader worker (pid 77) is killed by signal: Terminated.",
                                "ConnectionResetError: [Errno 104] Connection reset by peer", "EOFError"})
    expect(kStart + sigterm_of({0}) + with_prefix("[rank3]: ", traceback_of(exception)), "cancelled", kNone);
}

}  // namespace
}  // namespace braid
