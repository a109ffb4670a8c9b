// Logs that mislead: most lines, or the launcher, point at another rank or cause than the line that tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cluster/doctor/diagnosis_of_text.h"
#include "cluster/doctor/rules.h"

namespace braid {
namespace {

using testing::diagnosis_of_text;
using ::testing::HasSubstr;
using testing::kNone;
using ::testing::Not;
using testing::slug_of;
using testing::with_prefix;

std::string verdict(const std::string& text) {
  const Diagnosis diagnosis = diagnosis_of_text(text);
  return fmt::format("{} {}", slug_of(diagnosis), diagnosis.first_rank.value_or(kNone));
}

bool quotes(const Diagnosis& diagnosis, const std::string& words) {
  for (const Evidence& evidence : diagnosis.evidence)
    if (evidence.text.find(words) != std::string::npos) return true;
  return false;
}

std::string raised(const std::string& frame, const std::string& exception) {
  return "Traceback (most recent call last):\n  File \"/w/" + frame + "\n    step()\n" + exception + "\n";
}

// What a watchdog of PyTorch 2.7 prints, or with old_words one of 2.4.
std::string watchdog(int rank, int sequence, int enqueued, const std::string& group = "ID 0 PG GUID 0(default_pg)",
                     bool old_words = false) {
  const std::string prefix = fmt::format("[rank{}]:[E915 16:20:00.{:09} ProcessGroupNCCL.cpp:685] ", rank, rank);
  const std::string status =
      old_words ? fmt::format(
                      "Exception (either an error or timeout) detected by watchdog at work: {}, last enqueued "
                      "NCCL work: {}, last completed NCCL work: {}.",
                      sequence, enqueued, sequence - 1)
                : fmt::format(
                      " failure detected by watchdog at work sequence id: {} PG status: last enqueued work: {}, "
                      "last completed work: {}",
                      sequence, enqueued, sequence - 1);
  return fmt::format(
      "{0}[Rank {1}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={2}, OpType=ALLREDUCE, NumelIn=1, "
      "NumelOut=1, Timeout(ms)=600000) ran for 600{1:03} milliseconds before timing out.\n{0}[PG {3} Rank {1}] {4}\n",
      prefix, rank, sequence, group, status);
}

std::string steps(int first, int last, const std::string& date = "2026-09-15", int seconds = 60) {
  std::string text;
  for (int i = first; i <= last; ++i) {
    const int time = 3600 + i * seconds;
    text += fmt::format(" [{} {:02}:{:02}:{:02}] iteration {:8}/    4000 | consumed samples: {} | lm loss: 2.1E+00 |\n",
                        date, time / 3600, time / 60 % 60, time % 60, i, i * 8);
  }
  return text;
}

const std::string kSrunBlames2 =
    "srun: error: n1: task 2: Aborted (core dumped)\nsrun: error: n1: tasks 0-1,3-56: Aborted (core dumped)\n";
const std::string kTorchrunBlames2 =
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-09-15_16:21:02\n  host      : k1\n  rank      : 2 "
    "(local_rank: 2)\n  exitcode  : -6 (pid: 52)\n  error_file: <N/A>\n  traceback : Signal 6 (SIGABRT) received by "
    "PID "
    "52\n";

// A rank whose loader lost a worker stops; 56 others time out later, and abort.
TEST(Misleading, LoadersThatLostAWorkerComeBeforeTimeOuts) {
  std::string time_outs;
  for (int rank = 0; rank < 57; ++rank)
    if (rank != 31)
      time_outs += watchdog(rank, 77, 77) + "terminate called after throwing an instance of 'c10::DistBackendError'\n";
  const std::string died = "DataLoader worker (pid 55102) is killed by signal: ";
  const std::string frame = "dataloader.py\", line 1264, in _try_get_data";
  for (const auto& [expected, report] : std::vector<std::pair<std::string, std::string>>{
           {"data-rank-cascade 31", raised(frame, "RuntimeError: DataLoader worker (pid(s) 5) exited unexpectedly")},
           {"data-rank-cascade 31", "WARNING: starts again: DataLoader worker (pid(s) 5, 6) exited unexpectedly\n"},
           {"host-oom 31", raised(frame, "RuntimeError: " + died + "Killed. ")},
           {"host-oom 31", "2026-09-15 16:10:00 | ERROR | loader | " + died + "Killed. \n"},
           {"segfault 31", "RuntimeError: " + died + "Segmentation fault. \n"},
           {"shm-bus-error 31", "RuntimeError: " + died +
                                    "Bus error. It is possible that dataloader's workers are out "
                                    "of shared memory.\n"}})
    for (const std::string& end : {kSrunBlames2, kTorchrunBlames2}) {
      const std::string log = steps(1, 9) + with_prefix("[rank31]: ", report) + time_outs + end;
      EXPECT_EQ(verdict(log), expected) << report << end;
      EXPECT_TRUE(quotes(diagnosis_of_text(log), "DataLoader worker")) << report << end;
    }
  // Slurm tells why the worker died.
  const std::string oom =
      "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\nsrun: error: n3: task 31: Out Of Memory\n";
  EXPECT_EQ(verdict(with_prefix("[rank31]: ", raised(frame,
                                                     "RuntimeError: DataLoader worker (pid(s) 5) exited "
                                                     "unexpectedly")) +
                    oom),
            "host-oom 31");
}

TEST(Misleading, TheRankThatQueuedTheFewestCollectivesIsNamed) {
  for (const bool old_words : {false, true})
    for (const std::string& end : {kSrunBlames2, std::string("srun: error: n1: task 2: Exited with exit code 1\n"),
                                   std::string("srun: error: n1: task 2: Killed\n"), kTorchrunBlames2})
      // All ranks complain; only some do; one rank that prints the steps is silent.
      for (const auto& [before, ranks] : std::vector<std::pair<std::string, std::vector<int>>>{
               {"", {5, 1, 0, 7, 3, 2, 6, 4}},
               {"using world size: 64, data-parallel size: 64\n", {0, 2, 4, 6, 24}},
               {with_prefix("7: ", steps(1, 5)), {0, 1, 2, 3, 4, 5, 6}}}) {
        std::string log = before;
        for (const int rank : ranks) log += watchdog(rank, 310, rank == 6 ? 309 : 312, "ID 3 PG GUID 9(dp)", old_words);
        EXPECT_EQ(verdict(log + end), "nccl-timeout 6") << log + end;
        EXPECT_TRUE(quotes(diagnosis_of_text(log + end), old_words ? "enqueued NCCL work: 309" : "enqueued work: 309"));
      }
  // A rank that waits in a later collective than the others is not behind: rank 3, which is silent, was killed.
  const std::string waits = watchdog(0, 3, 3) + watchdog(1, 2, 4) + watchdog(2, 2, 4);
  EXPECT_EQ(verdict("[rank3]: ready\n" + waits), "nccl-timeout 3");
  // Numbers of different groups do not compare, and one of two ranks is no exception.
  std::string groups;
  for (const int rank : {1, 3, 5}) groups += watchdog(rank, 20, 21, "ID 3 PG GUID 9(tp)");
  for (const int rank : {0, 2, 4, 6}) groups += watchdog(rank, 500, rank == 4 ? 499 : 501, "ID 2 PG GUID 5(dp)");
  EXPECT_EQ(verdict(groups + kSrunBlames2), "nccl-timeout 4");
}

TEST(Misleading, LogsThatStopInTrainingAtTheLimitSaySoAtTheirStart) {
  const std::string scontrol =
      "   RunTime=00:00:03 TimeLimit=02:00:00 TimeMin=N/A\n   StartTime=2026-09-15T01:00:00 "
      "EndTime=2026-09-15T03:00:00 Deadline=N/A\n";
  for (const std::string& limit : {scontrol, std::string("#SBATCH --time=02:00:00\n"), std::string("#SBATCH -t 120\n"),
                                   std::string("job 7 on n[1-4], time limit 2:00:00\n")}) {
    const Diagnosis diagnosis = diagnosis_of_text(limit + steps(1, 118));
    EXPECT_EQ(slug_of(diagnosis), "time-limit") << limit;
    EXPECT_TRUE(quotes(diagnosis, "iteration      118"));
    EXPECT_EQ(diagnosis.evidence.front().line, 1u) << limit;
    EXPECT_EQ(verdict(limit + steps(1, 60)), "unknown -1") << limit;  // long before it
    EXPECT_EQ(verdict(limit + steps(1, 118) + "srun: error: n1: task 3: Segmentation fault\n"), "segfault 3");
    EXPECT_EQ(verdict(limit + steps(1, 118) + "[after training is done] datetime: 2026-09-15 02:59:00\n"),
              "success -1");
  }
  EXPECT_EQ(verdict("#SBATCH --time=0-23:00:00\n" + steps(1, 137, "2026-09-15", 600)), "time-limit -1");
  // Ranks that lose each other when their time is over may write first.
  const std::string lost =
      "[rank5]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was "
      "a network error\n";
  const std::string cancelled =
      "slurmstepd: error: *** STEP 4412.0 ON n1 CANCELLED AT 2026-09-15T{} DUE TO TIME LIMIT ***\n";
  EXPECT_EQ(verdict(steps(1, 9) + lost + fmt::format(fmt::runtime(cancelled), "01:09:30")), "time-limit -1");
  EXPECT_THAT(verdict(steps(1, 9) + lost + fmt::format(fmt::runtime(cancelled), "03:00:00")), HasSubstr("network"));
}

TEST(Misleading, TooManyOpenFilesAreNotSharedMemory) {
  const std::string files = raised("x.py\", line 1, in f", "OSError: [Errno 24] Too many open files: '/tmp/pymp-x'");
  for (const std::string& first :
       {raised("a.py\", line 1, in f",
               "RuntimeError: unable to open shared memory object </torch_2_3> in read-write mode"),
        raised("a.py\", line 1, in f", "RuntimeError: unable to mmap 1024 bytes from file </torch_2_3>"),
        std::string(
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory "
            "(shm).\n")}) {
    EXPECT_EQ(verdict(with_prefix("[rank1]: ", first + files)), "too-many-files 1") << first;
    EXPECT_EQ(verdict(with_prefix("[rank1]: ", first)), "shm-bus-error 1") << first;
  }
  const std::string segment = "Error while creating shared memory segment /dev/shm/nccl-qK1mzA (size 9637888)";
  EXPECT_EQ(verdict("node7:2201:2417 [3] misc/shmutils.cc:72 NCCL WARN Call to shm_open failed: Too many open files\n" +
                    with_prefix("[rank3]: ",
                                raised("a.py\", line 1, in f", "torch.distributed.DistBackendError: " + segment)) +
                    "srun: error: node7: task 3: Exited with exit code 1\n"),
            "too-many-files 3");
}

TEST(Misleading, WhoSaysThatItIsDoneHasHandledItsExceptions) {
  const std::string handled = "ERROR:root:upload failed\n" + raised("x.py\", line 1, in f", "ValueError: bad");
  for (const char* done : {"Training finished in 0:12:41.\n", "{'train_runtime': 812.1, 'train_loss': 1.9}\n",
                           "[exiting program at iteration 50] datetime: 2026-02-01 00:10:00\n"}) {
    EXPECT_EQ(verdict(steps(1, 50) + handled + done), "success -1") << done;
    EXPECT_EQ(verdict(steps(1, 50) + with_prefix("0: ", handled + done)), "success -1") << done;
    EXPECT_EQ(verdict(steps(1, 50) + with_prefix("3: ", handled) + with_prefix("0: ", done)), "python-error 3") << done;
    EXPECT_EQ(verdict(steps(1, 50) + handled + done + "srun: error: n1: task 3: Exited with exit code 1\n"),
              "python-error 3")
        << done;
    EXPECT_EQ(verdict(steps(1, 50) + done + handled), "python-error -1") << done;
  }
}

TEST(Misleading, AdviceFitsWhatTheJobDid) {
  const std::string fp8 = "quantization_config {'quant_method': 'fp8'}, atol=1e-1\n";
  const Diagnosis round_trip =
      diagnosis_of_text(fp8 + raised("rt.py\", line 1, in f", "ValueError: Weight mismatch detected"));
  EXPECT_EQ(slug_of(round_trip), "fp8-roundtrip-mismatch");
  EXPECT_THAT(round_trip.fix, Not(HasSubstr("1e-1")));

  const std::string gpu = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB.";
  for (const char* frame : {"auto_bridge.py\", line 4, in save_hf_weights", "export_hf.py\", line 4, in main"}) {
    const Diagnosis full = diagnosis_of_text(with_prefix("[rank0]: ", raised(frame, gpu)));
    EXPECT_EQ(slug_of(full), "gpu-oom");
    EXPECT_THAT(full.fix, Not(HasSubstr("micro batch"))) << frame;
    EXPECT_THAT(full.fix, HasSubstr("shards")) << frame;
  }
  EXPECT_THAT(diagnosis_of_text("Saving model to /out\n" + raised("train.py\", line 4, in forward", gpu)).fix,
              HasSubstr("micro batch"));
  const Diagnosis host = diagnosis_of_text(
      "0: Saving model to HF: /out\nslurmstepd: error: Detected 1 oom_kill event in "
      "StepId=7.0.\nsrun: error: n3: task 0: Out Of Memory\n");
  EXPECT_EQ(slug_of(host), "host-oom");
  EXPECT_THAT(host.fix, Not(HasSubstr("workers")));
  EXPECT_THAT(host.fix, HasSubstr("--mem=0"));
}

// Rank 0 saves, all others wait, and srun tells of the first that gave up.
TEST(Misleading, HangsInSavingAreOfTheRankThatSaves) {
  std::string log = "[rank0]: Saving model to /shared/out\n";
  for (int rank = 8; rank < 12; ++rank)
    log +=
        with_prefix(fmt::format("[rank{}]: ", rank),
                    raised("auto_bridge.py\", line 402, in save_hf_weights",
                           fmt::format("torch.distributed.DistBackendError: [{}] is setting up NCCL communicator and "
                                       "retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but "
                                       "store->get('0') got error: wait timeout after 600000ms",
                                       rank)));
  for (const char* end :
       {"", "srun: error: a02: task 9: Exited with exit code 1\nsrun: error: a01: tasks 0-8: Terminated\n"}) {
    EXPECT_EQ(verdict(log + end), "artifact-save-hang 0") << end;
    EXPECT_TRUE(quotes(diagnosis_of_text(log + end), "save_hf_weights")) << end;
  }
}

// Whatever a line matches, the verdict quotes a line of the log, and the one that matched if it is of that line.
TEST(Evidence, IsGivenForEveryRule) {
  for (const Rule& rule : rules().lines) {
    std::string line = rule.anchor;
    for (const std::string& words : rule.also) line += " " + words.substr(0, words.find('|'));
    const Diagnosis diagnosis = diagnosis_of_text("a first line\n" + line + " 1\nthe last line\n");
    ASSERT_FALSE(diagnosis.evidence.empty()) << line;
    const bool is_of_line = diagnosis.cause != Cause::Unknown && diagnosis.cause == cause_of(rule.sign);
    if (is_of_line) {
      EXPECT_EQ(diagnosis.evidence.front().line, 2u) << line << "\n" << to_text(diagnosis);
    }
  }
}

}  // namespace
}  // namespace braid
