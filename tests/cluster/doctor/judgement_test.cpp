// What lines mean together: which of them is the cause, and which rank was first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cluster/doctor/diagnosis_of_text.h"

namespace braid {
namespace {

using testing::diagnosis_of_text;
using ::testing::HasSubstr;
using testing::kNone;
using ::testing::Not;
using testing::slug_of;
using testing::with_prefix;

std::string raised(const std::string& exception) {
  return "Traceback (most recent call last):\n  File \"/w/train.py\", line 7, in main\n    step()\n" + exception + "\n";
}

std::string verdict(const std::string& text) {
  const Diagnosis diagnosis = diagnosis_of_text(text);
  return fmt::format("{} {}", slug_of(diagnosis), diagnosis.first_rank.value_or(kNone));
}

// As the summary and the launcher of Braid say it.
TEST(OwnRuns, EndAsTheirSummarySays) {
  const std::string start = "braid: 2 ranks: language on 0-1 (tp 2)\n";
  for (const auto& [cause, line] : std::vector<std::pair<std::string, std::string>>{
           {"success", "run ended              all iterations done"},
           {"success", "run ended              exit_interval=4 reached"},
           {"success", "already at iteration 10 of 10: nothing to do; train further with a larger --train-iters"},
           {"hangup", "run ended              SIGHUP (terminal closed)"},
           {"cancelled", "run ended              SIGINT (Ctrl-C)"},
           {"cancelled", "run ended              SIGUSR1"},
           {"cancelled", "braid: stopped; nothing was saved: there is no complete checkpoint in 'x'"}})
    EXPECT_EQ(slug_of(diagnosis_of_text(start + line + "\nlm loss   6.2 -> 5.1\n")), cause) << line;
}

TEST(Exceptions, AreJudgedByTheirTypeAndTheirWords) {
  for (const auto& [cause, exception] : std::vector<std::pair<std::string, std::string>>{
           {"hub-unreachable", "oss2.exceptions.AccessDenied: {'status': 403}"},
           {"hub-unreachable", "RuntimeError: Failed to download the weights of x"},
           {"network", "tensorflow.python.framework.errors_impl.UnavailableError: OS Error"},
           {"cuda-error", "numba.cuda.cudadrv.driver.CudaAPIError: [700] results in UNKNOWN_CUDA_ERROR"},
           {"cuda-error", "xgboost.core.XGBoostError: Check failed: e == cudaSuccess"},
           {"import-error", "RuntimeError: apex is not installed"},
           {"weight-load-mismatch", "ValueError: vocabulary size of the checkpoint does not match"},
           {"nan-loss", "ValueError: found invalid values: tensor([[nan, nan]])"},
           {"nccl-timeout", "RuntimeError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"},
           {"not-launched", "KeyError: 'SLURM_PROCID'"},
           {"not-launched", "ValueError: Tried to launch on several nodes, but `MASTER_ADDR` env was not set"},
           {"not-launched", "RuntimeError: LOCAL_RANK is not set"},
           {"hub-unreachable", "OSError: failed to fetch config.json from https://huggingface.co/gpt2/resolve/main"},
           {"hub-unreachable", "ValueError: Your token has no rights for https://huggingface.co/meta-llama/x"},
           {"hub-unreachable", "RuntimeError: Downloading the weights of x failed"},
           {"nan-loss", "AssertionError: loss should be finite, but is nan"},
           {"nan-loss", "ValueError: loss must be finite. Got nan"},
           {"nan-loss", "RuntimeError: non-finite loss; lr should be lowered"},
           {"nccl-timeout", "RuntimeError: gloo broadcast timed out"},
           {"nccl-timeout", "RuntimeError: barrier: timeout after 600 s"},
           {"unused-parameters", "RuntimeError: parameters did not get gradients; see find_unused_parameters"},
           {"duplicate-gpu", "RuntimeError: two ranks use the same GPU"},
           {"rendezvous", "dmlc.DMLCError: tracker.cc:12: Check failed: Connect failed to 10.0.0.1"},
           {"python-error", "ValueError: too many values to unpack"}})
    EXPECT_EQ(slug_of(diagnosis_of_text(raised(exception))), cause) << exception;
}

// The prefix is of the process, or the node, that started it.
TEST(SpawnedProcesses, AreNamedByTheirNumber) {
  const std::string text = raised("torch.multiprocessing.spawn.ProcessRaisedException: ") +
                           "\n-- Process 2 terminated with the following error:\n" + raised("KeyError: 'x'") +
                           "\nThe above exception was the direct cause of:\n\n" +
                           raised("AttributeError: no such thing");
  for (const char* prefix : {"", "(head, rank=0, pid=2972) ", "0: ", "[rank0]: ", "train-0 | "})
    EXPECT_EQ(verdict(with_prefix(prefix, text)), "python-error 2") << prefix;
}

// Who sees that a run failed cancels the job, kills it, or lets it wait until its time is over.
TEST(EndsFromOutside, AreNotTheCauseOfWhatFailedBefore) {
  const std::string cut = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-15T12:40:29 ***\n";
  const std::vector<std::pair<std::string, std::string>> failures = {
      {"network", "n1:42:60 [0] transport/net_ib.cc:1402 NCCL WARN NET/IB : Got completion from peer 10.0.0.3<4567>\n"},
      {"network", "[rank3]: RuntimeError: [pair.cc:589] Connection closed by peer [10.0.0.3]:4567\n"},
      {"rendezvous", "RuntimeError: mesh_service.cc:243 : Failed to meet rendezvous 'init': Socket closed (14)\n"},
      {"segfault", "n1: rank 3 died from signal 11\n"},
      {"segfault", "Fatal Python error: Segmentation fault\n"},
      {"killed", "mpirun noticed that process rank 3 with PID 4242 on node n2 exited on signal 9 (Killed).\n"}};
  const std::vector<std::string> ends = {
      "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-15T12:40:29 ***\n",
      "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-15T12:40:29 DUE TO TIME LIMIT ***\n",
      raised("KeyboardInterrupt"),
      "Killed\n",
      "ERROR: Job failed: exit code 1\n",
      cut + "srun: error: n1: tasks 0-7: Killed\n"};
  for (const auto& [cause, failure] : failures)
    for (const std::string& end : ends) EXPECT_EQ(slug_of(diagnosis_of_text(failure + end)), cause) << failure << end;
  for (const std::string& end : {ends[0], ends[1]})
    EXPECT_NE(slug_of(diagnosis_of_text(end + failures[0].second)), "network") << end;
}

// Slurm tells the time of its place, others may tell that of Greenwich.
TEST(EndsFromOutside, TimeZonesDoNotPutThemBeforeACause) {
  EXPECT_EQ(slug_of(diagnosis_of_text(with_prefix("2026-11-15T17:40:20Z ", raised("ValueError: bad")) +
                                      "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-15T12:40:29 ***\n")),
            "python-error");
}

// Scripts go on after most of what they look for in vain.
TEST(Starts, WhatIsNotFoundBeforeAnExceptionIsNoCause) {
  for (const char* line :
       {"bash: module: command not found", "/bin/sh: nvidia-smi: command not found",
        "'nvcc' is not recognized as an internal or external command,", "fish: Unknown command: nvcc",
        "CommandNotFoundError: Your shell has not been properly configured"}) {
    EXPECT_EQ(verdict(fmt::format("{}\n", line)), "not-launched -1");
    EXPECT_EQ(verdict(fmt::format("{}\n{}", line, raised("ValueError: bad"))), "python-error -1") << line;
    EXPECT_EQ(verdict(fmt::format("{}\nTraining completed\n", line)), "success -1") << line;
    EXPECT_EQ(verdict(fmt::format("{}\nsrun: error: n1: task 3: Killed\n", line)), "killed 3") << line;
    EXPECT_EQ(verdict(fmt::format("{}\nRuntimeError: Connection reset by peer\n", line)), "network -1") << line;
  }
}

TEST(Starts, SlurmWithoutItsFilesRunsNothing) {
  const std::string lines =
      "scontrol: error: fetch_config: DNS SRV lookup failed\n"
      "scontrol: error: _establish_config_source: failed to fetch config\n"
      "scontrol: fatal: Could not establish a configuration source\n";
  EXPECT_EQ(verdict(lines), "not-launched -1");
  EXPECT_EQ(verdict(lines + raised("ValueError: bad")), "python-error -1");
}

TEST(Starts, AnAllocationIsToldOfByGoodRunsToo) {
  EXPECT_EQ(verdict("All hosts are included in the current allocation\n" + raised("ValueError: bad")),
            "python-error -1");
  EXPECT_EQ(verdict("Some of the requested hosts are not included in the current allocation for the\n"),
            "not-launched -1");
}

TEST(Starts, ACompilerThatIsMissingIsNoCauseOfFullMemory) {
  EXPECT_EQ(verdict("'nvcc' is not recognized as an internal or external command,\noperable program or batch file.\n" +
                    raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")),
            "gpu-oom -1");
}

TEST(Starts, AProgramThatIsMissingStopsOthersToo) {
  EXPECT_EQ(verdict("bash: line 1: torchrun: command not found\ntorch.distributed.DistStoreError: Timed out after 301 "
                    "seconds waiting for clients. 1/2 clients joined.\n"),
            "not-launched -1");
}

TEST(Ends, AScriptThatIsPrintedTellsOfNone) {
  for (const char* line :
       {"trap 'echo Caught SIGTERM' TERM", "+ echo 'Got SIGHUP'", "# DUE TO TIME LIMIT", "echo OOMKilled"})
    EXPECT_EQ(verdict(fmt::format("{}\n{}", line, raised("ValueError: bad"))), "python-error -1") << line;
}

TEST(Starts, ALauncherMayFailItself) {
  const auto launcher = [](const char* exception) {
    return std::string(
               "Traceback (most recent call last):\n  File \"/x/deepspeed/launcher/runner.py\", line 5, in main\n") +
           exception + "\n";
  };
  EXPECT_EQ(verdict(launcher("FileNotFoundError: [Errno 2] No such file or directory: 'pdsh'")), "not-launched -1");
  EXPECT_EQ(verdict(launcher("ValueError: no such option")), "python-error -1");
  EXPECT_EQ(verdict(raised("KeyError: 'x'") + launcher("ValueError: no such option")), "python-error -1");
  EXPECT_EQ(verdict(launcher("Exception: process 3 terminated with exit code 17")), "unknown 3");
}

TEST(EndsFromOutside, TheRestOfAStepIsNotCancelledByAnybody) {
  const std::string failed = "srun: error: n1: tasks 0-7: Exited with exit code 1\n",
                    end = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-15T12:40:29 ***\n";
  EXPECT_EQ(verdict(failed + end), "unknown -1");
  EXPECT_EQ(verdict(end + "srun: error: n1: tasks 0-7: Killed\n"), "cancelled -1");
}

TEST(Exceptions, AMessageMayBeginOnTheNextLine) {
  const std::string driver = "The NVIDIA driver on your system is too old (found version 10010).\n";
  EXPECT_EQ(verdict(raised("AssertionError: ") + driver), "cuda-error -1");
  EXPECT_EQ(verdict(raised("AssertionError: wrong shape") + driver), "python-error -1");  // somebody else's line
}

TEST(Exceptions, OfAWorkerAreWhatItSaysBelow) {
  const std::string worker = raised("OSError: Caught OSError in DataLoader worker process 3.") + "Original " +
                             raised("OSError: [Errno 28] No space left on device");
  EXPECT_EQ(verdict(with_prefix("[rank2]: ", worker)), "disk-full 2");
}

TEST(Exceptions, MayTellHowAProcessEnded) {
  EXPECT_EQ(verdict(raised("ValueError: Error training x: Failed Reason: AlgorithmError: Exit Code: 139")),
            "segfault -1");
}

TEST(Exceptions, TheErrorOfAWriterMeansADiskThatIsFull) {
  EXPECT_EQ(verdict(raised("RuntimeError: [enforce fail at inline_container.cc:603] . Disk quota")), "disk-full -1");
  EXPECT_EQ(verdict(raised("RuntimeError: [enforce fail at inline_container.cc:145] . PytorchStreamReader failed")),
            "python-error -1");
}

TEST(Levels, InformationAndWarningsAreNoCause) {
  const std::string message = "xla_bridge.py:355] Unable to initialize backend 'cuda': no device\n";
  EXPECT_EQ(verdict("I1230 20:44:14.322310 139921 " + message), "unknown -1");
  EXPECT_EQ(verdict("2022-12-30 20:44:13.602311: W external/" + message), "unknown -1");
  EXPECT_EQ(verdict("E1230 20:44:14.322310 139921 " + message), "cuda-error -1");
  for (const char* prefix : {"INFO:jax:", "2026-11-15 10:00:00,123 - INFO - ", "2026-11-15 10:00:00 - jax - INFO - ",
                             "[2026-11-15 10:00:00,123][jax][INFO] ", "[INFO] ", "10:00:00 | INFO | ",
                             "2026-11-15 10:00:00,123 INFO ", "2026-11-15 10:00:00.123 | INFO     | jax:f:1 - "})
    EXPECT_EQ(verdict(prefix + message), "unknown -1") << prefix;
  for (const char* prefix : {"ERROR:jax:", "2026-11-15 10:00:00,123 - ERROR - ", "[ERROR] "})
    EXPECT_EQ(verdict(prefix + message), "cuda-error -1") << prefix;
}

std::string waits_in(int rank, int sequence) {
  return fmt::format(
      "[rank{0}]:[E1115 10:00:00.1 P.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
      "WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=600000) ran for 600000 ms\n",
      rank, sequence);
}

TEST(Stragglers, AreTheOnesWithTheLowestSequenceNumber) {
  EXPECT_EQ(verdict(waits_in(0, 78) + waits_in(1, 78) + waits_in(2, 77) + waits_in(3, 78)), "nccl-timeout 2");
}

TEST(Stragglers, AreNamedByHorovod) {
  const std::string stalled = "[1,0]<stderr>:Missing ranks:\n[1,0]<stderr>:5: [allreduce.bn1.bias, allreduce.fc ...]\n";
  EXPECT_EQ(verdict(stalled + stalled), "nccl-timeout 5");
}

TEST(Ends, WhatALauncherLostWasAProcessThatEnded) {
  const std::string lost = "ORTE has lost communication with a remote daemon.\n";
  EXPECT_EQ(verdict(lost), "network -1");
  EXPECT_EQ(verdict("command terminated with exit code 137\n" + lost), "killed -1");
  EXPECT_EQ(verdict("[n1:10610] Signal: Segmentation fault (11)\n" + lost), "segfault -1");
}

TEST(Ends, ANodeThatWasTakenAwayDidNotFail) {
  EXPECT_EQ(verdict("drain detected: preempted_ranks=[1], deadline=17\nThe actor is dead because its node has died.\n"),
            "preempted 1");
  EXPECT_EQ(verdict("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-15T10:00:00 DUE TO NODE FAILURE ***\n"
                    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-15T10:00:01 DUE TO JOB REQUEUE ***\n"),
            "node-failure -1");
}

TEST(Ends, SeveralTasksThatEndedTogetherComeBeforeOne) {
  const std::string twice = with_prefix("3: ", raised("ValueError: a")) + with_prefix("6: ", raised("ValueError: b"));
  EXPECT_EQ(verdict(twice + "srun: error: n1: tasks 0-1,3: Exited with exit code 1\n"
                            "srun: error: n2: task 6: Exited with exit code 1\n"),
            "python-error 3");
}

TEST(Ends, ASignalIsNoExitCode) {
  const Diagnosis diagnosis = diagnosis_of_text("rank 3 died from signal 11\n");
  EXPECT_EQ(slug_of(diagnosis), "segfault");
  EXPECT_THAT(diagnosis.explanation, HasSubstr("ended by SIGSEGV"));
  EXPECT_THAT(diagnosis.explanation, Not(HasSubstr("-11")));
}

TEST(Starts, LoginsThatAreRefusedAreNoFileModes) {
  for (const char* line : {"n2: Permission denied (publickey,password).\n", "Host key verification failed.\n",
                           "ssh: Could not resolve hostname node-0: Name or service not known\n"}) {
    const Diagnosis diagnosis = diagnosis_of_text(line);
    EXPECT_EQ(slug_of(diagnosis), "not-launched") << line;
    EXPECT_THAT(diagnosis.explanation, HasSubstr("cannot log in")) << line;
  }
}

TEST(Starts, WrongArgumentsAreNoException) {
  const Diagnosis diagnosis = diagnosis_of_text("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x\n");
  EXPECT_EQ(slug_of(diagnosis), "python-error");
  EXPECT_THAT(diagnosis.explanation, Not(HasSubstr("exception")));
}

TEST(Starts, SitesRefuseInTheirOwnWords) {
  EXPECT_EQ(verdict("sbatch: error: you submitted to gpu32 without specifying a GPU32 Account.\n"), "bad-account -1");
  EXPECT_EQ(verdict("sbatch: error: the partition gpu32 is closed\n"), "bad-partition -1");
}

// What a program raises on its way out, when it misses its peers, does not hide what sent it there.
TEST(Chains, OfExceptionsKeepTheirCause) {
  const std::string handling = "\nDuring handling of the above exception, another exception occurred:\n\n";
  const std::string frames =
      "Traceback (most recent call last):\n  File \"/w/train.py\", line 10, in <module>\n    main()\n";
  EXPECT_EQ(
      slug_of(diagnosis_of_text(frames + "ValueError: bad\n" + handling + frames +
                                "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited "
                                "or there was a network error\n")),
      "python-error");
  EXPECT_EQ(slug_of(diagnosis_of_text(frames + "socket.timeout: timed out\n" + handling + frames +
                                      "OSError: We couldn't connect to 'https://huggingface.co' to load this file\n")),
            "hub-unreachable");
}

TEST(Advice, FitsContainersAndFileSystems) {
  const auto fix = [](const std::string& text) { return diagnosis_of_text(text + "\n").fix; };
  EXPECT_THAT(fix("FATAL:   container creation failed: mount source /scratch doesn't exist"), HasSubstr("--bind"));
  EXPECT_THAT(fix("FATAL:   exec /usr/bin/train failed: no such file or directory"), HasSubstr("Check the path"));
  EXPECT_THAT(fix("FATAL:   could not open image /w/x.sif: no such file or directory"), HasSubstr("all nodes share"));
  EXPECT_THAT(fix(raised("OSError: [Errno 116] Stale file handle: '/mnt/x'")), HasSubstr("file system failed"));
  EXPECT_THAT(fix(raised("OSError: [Errno 5] Input/output error")), HasSubstr("file system failed"));
  EXPECT_THAT(fix(raised("ValueError: bad")), Not(HasSubstr("file system")));
  EXPECT_EQ(verdict("Usage of EmptyDir volume \"scratch\" exceeds the limit \"50Gi\".\n"), "disk-full -1");
}

}  // namespace
}  // namespace braid
