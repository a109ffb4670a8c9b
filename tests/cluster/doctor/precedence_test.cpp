// Which of several lines is the cause.
#include <gtest/gtest.h>
#include "cluster/doctor/diagnosis_of_text.h"

namespace braid {
namespace {

using testing::diagnosis_of_text;
using testing::kNone;
using testing::slug_of;
using testing::with_prefix;

// What came first, and what only follows from it or guesses at it.
TEST(Precedence, OfWhatIsSaidInSeveralLines) {
  const std::string traceback = "Traceback (most recent call last):\n  File \"/w/a.py\", line 1, in f\n";
  const std::string hang =
      "[rank0]:[E1115 10:00:00.1 P.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, "
      "OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=600000) ran for 600000 milliseconds\n";
  for (const auto& [text, cause, rank] : std::vector<std::tuple<std::string, const char*, int>>{
           // PyTorch's report of a desync names who did not come.
           {hang + "\t   [6] finished collective #182, but didn't join collective #183 (count from 1)\n",
            "nccl-timeout", 6},
           {hang + "\t - To our best knowledge, ranks [2, 5] are the lagging ranks that caused this timeout.\n",
            "nccl-timeout", 2},
           {hang + "\t   [1] joined but didn't finish collective #12 (count from 1)\n", "nccl-timeout", 1},
           {hang + "missing ranks: {3}\n", "nccl-timeout", 3},  // the flight recorder
           {"F1115 10:00:00.0 1 client.h:77] This most likely indicates that another task died. DEADLINE_EXCEEDED: "
            "Barrier timed out. Id: a::0. The first task at the barrier: /job:jax_worker/replica:0/task:0. Some timed "
            "out task names: /job:jax_worker/replica:0/task:1\n",
            "nccl-timeout", 1},
           {"[rank1]:[F1115 10:00:00.1 P.cpp:1] [PG ID 0 PG GUID 0 Rank 1] Terminating the process after attempting to "
            "dump debug info, due to ProcessGroupNCCL watchdog hang.\n",
            "nccl-timeout", 1},
           {hang + with_prefix("[rank1]: ", traceback + "DistBackendError: NCCL error in: a.cpp:1, unhandled system "
                                                        "error (run with NCCL_DEBUG=INFO for details)\n"),
            "nccl-timeout", 0},
           // A job that hangs without its network is cancelled.
           {"n1:1:2 [4] net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer n2<3> with error 12\n"
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-15T12:40:29 ***\n",
            "network", kNone},
           // The kernel tells of a program's own mistakes, too.
           {with_prefix("[rank3]: ",
                        traceback + "RuntimeError: CUDA error: an illegal memory access was encountered\n") +
                "NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python, MMU Fault\n",
            "cuda-error", 3},
           {with_prefix("[rank3]: ", traceback + "RuntimeError: CUDA error: unspecified launch failure\n") +
                "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.\n",
            "node-failure", 3},
           // All ranks print that a checkpoint failed on one.
           {with_prefix("[rank0]: ", traceback + "CheckpointException: CheckpointException ranks:dict_keys([2])\n" +
                                         "Traceback (most recent call last): (RANK 2)\n  File \"/w/a.py\", line 1, in "
                                         "f\nOSError: [Errno 28] No space left on device\n"),
            "disk-full", 2},
           // Whose traceback it is stands before it.
           {"Rank 5 encountered an exception:\n" + traceback + "ValueError: bad\n", "python-error", 5},
           {"ERROR | [rank5] | trainer:fit:12 - An error has been caught\n" + traceback + "ValueError: bad\n",
            "python-error", 5},
           {hang + traceback + "ValueError: bad\n", "python-error", kNone},
           {"-----Begin global rank 1 STDERR-----\n" + traceback +
                "ValueError: bad\n-----End global rank 1 STDERR-----\n",
            "python-error", 1},
           {"[2026-11-15 10:00:00,670] [ERROR] [a.b:500] [PID:42] [RANK:6] " + traceback + "ValueError: bad\n",
            "python-error", 6},
           {"[F] k2/csrc/eval.h:147 Check failed: e == cudaSuccess (98 vs. 0)\n" + traceback +
                "RuntimeError: \n    Some bad things happened. Please read the above error messages.\n",
            "cuda-error", kNone},
           // An exception without a message means what was said right before it.
           {"I1115 10:00:00 51 train.py:275] NaN detected\n" + traceback + "AssertionError\n", "nan-loss", kNone},
           {"ERROR: not enough disk space on /scratch\n" + traceback + "RuntimeError\n", "disk-full", kNone},
           {traceback + "    assert torch.isfinite(loss).all()\n           ^^^^^^^^^^^^\nAssertionError\n", "nan-loss",
            kNone},
           {traceback +
                "    assert torch.isfinite(loss)\n  File \"/w/b.py\", line 2, in g\n    assert x\nAssertionError\n",
            "python-error", kNone},
           {"[rank1]: NaN detected\n[rank0]: CUDA error: unknown error\n" +
                with_prefix("[rank1]: ", traceback + "AssertionError\n"),
            "nan-loss", 1},
           {"NaN detected\n" + traceback + "KeyError: 'labels'\n", "python-error", kNone},
           // Who only lost a process knows less than the kernel.
           {traceback + "ray.tune.error.TuneError: ('Trials did not complete', [a])\n" +
                "slurmstepd: error: Detected 3 oom-kill event(s) in step 6.batch cgroup.\n",
            "host-oom", kNone},
           {traceback + "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated "
                        "abruptly\n[ 8.1] Memory cgroup out of memory: Killed process 42 (python) total-vm:9kB\n",
            "host-oom", kNone},
           {"munmap_chunk(): invalid pointer\nWorker process 21944 was killed by signal 6\n" + traceback +
                "distributed.scheduler.KilledWorker: ('train-8c0b', <Worker 'tcp://10.0.0.2:42'>)\n",
            "segfault", kNone},
           {"ERROR Scheduler: Lost executor 0 on 10.0.0.2: Remote RPC client disassociated. Likely due to containers "
            "exceeding thresholds, or network issues.\nml.java.XGBoostError: XGBoostModel training failed\n",
            "network", kNone},
           {"ray.memory_monitor.RayOutOfMemoryError: More than 95% of the memory on node n1 is used (15 / 16 GB).\n",
            "host-oom", kNone},
           // What was tried, and done without.
           {"/d/tcp_socket.cc:86: Failed bind on 10.0.0.2:30051 , error: Address already in use\n" + traceback +
                "AttributeError: 'list' object has no attribute 'local_scope'\n",
            "python-error", kNone},
           {"n1:4:4 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed\n", "unknown", kNone},
           // The log of one rank.
           {"[n1:1/2] 2026-11-15 10:00:00 INFO: a\n[n1:1/2] 2026-11-15 10:00:01 INFO: b\n" + traceback +
                "ValueError: bad\n",
            "python-error", 1},
           {traceback + "KeyError: \"pooler.weight from model not in state dict: ['decoder.weight']\"\n",
            "weight-load-mismatch", kNone},
           {traceback + "RuntimeError: One or more background workers are no longer alive. Exiting.\n" +
                "slurmstepd: error: Detected 6 oom_kill events in StepId=60312245.batch.\n",
            "host-oom", kNone},
           {traceback + "ray.train.BroadcastCollectiveTimeoutError: The broadcast operation timed out after 1800 s.\n"
                        "The following ranks have not called it: [3]\n"
                        "ray.train.WorkerGroupError: Training failed due to worker errors\n",
            "nccl-timeout", 3},
           {with_prefix("[rank1]: ", traceback + "RuntimeError: DataLoader worker (pid 7) exited unexpectedly\n") +
                hang,
            "data-rank-cascade", 1},
           // A notebook's traceback begins with the type of the exception; that is not a prefix.
           {"ValueError                                Traceback (most recent call last)\n<ipython-input-23-4bb7> in "
            "<module>()\n----> 1 fit(data)\n\n~/lib/a.py in fit(self)\n    336   x = 1\n--> 338   self.wait()\n\n"
            "ValueError: Error for job a: Failed. Reason: AlgorithmError: Exit Code: 132\n",
            "segfault", kNone},
           {"KeyError                                  Traceback (most recent call last)\nCell In[3], line 1\n----> 1 "
            "d['a']\n\nKeyError: 'a'\n",
            "python-error", kNone},
           // NCCL tells the program's mistakes from the network's.
           {with_prefix("[rank1]: ", traceback + "RuntimeError: NCCL error in: a.cpp:784, invalid argument, NCCL "
                                                 "version 2.7.8\n"),
            "python-error", 1},
           {with_prefix("[rank1]: ", traceback + "RuntimeError: NCCL error in: a.cpp:784, invalid usage, NCCL version "
                                                 "2.7.8\n") +
                "n1:1:2 [0] init.cc:5 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 100\n",
            "duplicate-gpu", 0},
           {"[n1:mpi_rank_24][error_sighandler] Caught error: Segmentation fault (signal 11)\n"
            "=   PID 20417 RUNNING AT n1\n=   EXIT CODE: 139\n",
            "segfault", 24},
           // What a program says it can do without.
           {"Installed CUDA version 11.7 does not match the version torch was compiled with 11.6, accepting this "
            "combination\n['python', 'a.py'] exits with return code = -11\n",
            "segfault", kNone},
           {"2026-11-15,10:00:00 | INFO | Loss is nan, stopping training\nwandb: Waiting for W&B process to finish... "
            "(success).\n",
            "nan-loss", kNone},
           {"Saving checkpoint at 1 epochs\n[>>>>] 41022/41022, 412.2 task/s, elapsed: 100s, ETA:     0s\n" + hang,
            "nccl-timeout", 0},
           {"A: Caught Win32 exception 0xc0000005: Access violation.\njob aborted:\n[ranks] message\n\n[0] "
            "terminated\n\n"
            "[1] process exited without calling finalize\n",
            "segfault", 1},
           {traceback + "RuntimeError: Deadline exceeded: Failed to connect to remote server at address: "
                        "grpc://10.59.106.169:8470. Error from gRPC: Deadline Exceeded.\n",
            "rendezvous", kNone},
           {"Process finished with exit code -1073741819 (0xC0000005)\n", "segfault", kNone},
           {"# Ended (code 137) at Tue Jul  5 11:20:43 UTC 2022, elapsed time 12 seconds\n", "killed", kNone},
           {"# Ended (code 0) at Tue Jul  5 11:20:43 UTC 2022, elapsed time 12 seconds\n", "success", kNone},
           {traceback + "SystemExit: loss diverged to inf\n", "nan-loss", kNone},
           {"[WARNING] Loss is not finite; stopping\n", "nan-loss", kNone},
           {"Exception in thread \"main\" org.apache.spark.SparkException: Job aborted due to stage failure\n",
            "python-error", kNone},
           {"ERROR (nnet3-train[5.5]:MallocPitch():cu-allocator.cc:526) Failed to allocate a memory region of 2097152 "
            "bytes.  cudaMalloc: out of memory\n",
            "gpu-oom", kNone},
           {"make: *** [Makefile:3: train] Killed\n", "killed", kNone},
           {"F0703 10:00:00.1 42 syncedmem.cpp:71] Check failed: error == cudaSuccess (2 vs. 0)  out of memory\n"
            "Aborted (core dumped)\n",
            "gpu-oom", kNone},
           {"Error in fit(model) : object 'x' not found\nExecution halted\n", "python-error", kNone},
           {"Missing ranks:\n2: [allreduce.grad]\n", "nccl-timeout", 2},  // no label of a launcher
           {"replica workerpool0-0: the job was cancelled because it exceeded the maximum timeout of 604800s\n",
            "time-limit", kNone},
           {"botocore.ResourceLimitExceeded: An error occurred (ResourceLimitExceeded) when calling the "
            "CreateTrainingJob operation: The account-level service limit is 0\n",
            "not-launched", kNone},
           {"ERROR: Failed building wheel for flash-attn\n", "import-error", kNone},
           {traceback + "RuntimeError: grad_scale is too small, exiting: 1.29e-26\n", "nan-loss", kNone},
           // Programs that tell of their exceptions in a line of their own.
           {"2026-11-15 10:00:00 ERROR train.py:77 - Training failed: KeyError('labels')\n", "python-error", kNone},
           {"{\"level\": \"error\", \"error\": \"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 "
            "GiB.\"}\n",
            "gpu-oom", kNone},
           {"Training completed\nError in atexit._run_exitfuncs:\n" + traceback + "KeyboardInterrupt\n", "success",
            kNone},
           {"Saving model to out\nModel saved to out/model.bin\n" + hang, "nccl-timeout", 0},
           {traceback + "  File \"/l/torch/distributed/elastic/agent/server/api.py\", line 1, in _assign_worker_ranks\n"
                        "  File \"/l/torch/distributed/elastic/utils/store.py\", line 31, in get_all\n"
                        "torch.distributed.DistStoreError: Socket Timeout\n",
            "rendezvous", kNone}}) {
    const Diagnosis diagnosis = diagnosis_of_text(text);
    EXPECT_EQ(slug_of(diagnosis), cause) << text;
    EXPECT_EQ(diagnosis.first_rank.value_or(kNone), rank) << text;
  }
}

// A parent that finds its process gone, a thread, a job of a CI, harmless warnings: the cause is the same.
TEST(Precedence, WhatWrappersAndWarningsSayChangesNothing) {
  const std::string traceback = "Traceback (most recent call last):\n  File \"/w/run.py\", line 12, in <module>\n";
  const std::vector<std::pair<std::string, const char*>> logs = {
      {"RuntimeError: [pair.cc:589] Read error [10.0.0.1]:25266: Connection reset by peer\n", "network"},
      {"ProcessExitedException: process 1 terminated with signal SIGKILL\n", "killed"},
      {"RuntimeError: The client socket has timed out after 60s while trying to connect to (n1, 29400).\n",
       "rendezvous"},
      {"OSError: [Errno 122] Disk quota exceeded\n", "disk-full"},
  };
  const std::vector<std::string> before = {
      "'(ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.\"), '(Request ID: "
      "1)')'"
      " thrown while requesting HEAD https://huggingface.co/x/resolve/main/config.json\nRetrying in 1s [Retry 1/5].\n",
      "/var/spool/slurmd/job1/slurm_script: line 12: module: command not found\n"};
  const std::vector<std::string> after = {
      traceback + "subprocess.CalledProcessError: Command '['torchrun']' returned non-zero exit status 1.\n",
      traceback + "RuntimeError: Training failed\n",
      "Exception in thread Thread-3:\n" + traceback + "    raise EOFError\nEOFError\n",
      "make: *** [Makefile:12: train] Error 1\n", "client_loop: send disconnect: Broken pipe\n"};
  for (const auto& [exception, cause] : logs) {
    const std::string log = traceback + exception;
    for (const std::string& lines : before) EXPECT_EQ(slug_of(diagnosis_of_text(lines + log)), cause) << lines + log;
    for (const std::string& lines : after) EXPECT_EQ(slug_of(diagnosis_of_text(log + lines)), cause) << log + lines;
  }
}

// The message is of the program, or of an argument, whatever else its words are names of.
TEST(Precedence, NamesInAMessageAreNoCause) {
  for (const char* exception :
       {"RuntimeError: Expected tensor for argument #1 'input' to have the same device as tensor for argument #2 "
        "'weight'; but device 0 does not equal 2 (while checking arguments for cudnn_convolution)",
        "ValueError: The model you have picked cannot be used for training. Find a list at "
        "https://huggingface.co/models?filter=lm-head",
        "ValueError: `norm_type` must be a positive number or 'inf' (infinity norm). Got -1",
        "ValueError: Cannot set both log_local_rank_0_only and log_global_rank_0_only to True.",
        "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set and no template "
        "argument was passed! For information see the documentation at "
        "https://huggingface.co/docs/transformers/main/en/chat_templating",
        "KeyError: 'nccl_timeout'", "ValueError: invalid NCCL_TIMEOUT 'abc'",
        "ValueError: You selected an invalid strategy name: `strategy='ddp_find_unused_parameters_false'`",
        "ValueError: inputs must be on the same gpu, rank 1 got cuda:0",
        "RuntimeError: use a different backend for collective operations on CPU",
        "ValueError: micro batch not set, cannot infer from world_size",
        "RuntimeError: connection error in the dataloader"})
    EXPECT_EQ(slug_of(diagnosis_of_text("Traceback (most recent call last):\n  File \"/w/a.py\", line 1, in f\n" +
                                        std::string(exception) + "\n")),
              "python-error")
        << exception;
}

TEST(Precedence, NamesInAMessageAreNoOtherCause) {
  const std::string traceback = "Traceback (most recent call last):\n  File \"/w/a.py\", line 1, in f\n";
  EXPECT_NE(slug_of(diagnosis_of_text(traceback + "RuntimeError: Error building extension 'cpu_adam': [1/3] c++ "
                                                  "-I/data/downloads/torch/include cpu_adam.cpp\n")),
            "hub-unreachable");
  EXPECT_NE(slug_of(diagnosis_of_text(traceback + "mxnet.base.MXNetError: src/operator/nn/fully_connected.cc:84: Check "
                                                  "failed: in_shape->size() == 3U (2 vs. 3)\n")),
            "rendezvous");
  // What was done without, and then an exception that only looks as if it told of a process.
  for (const char* exception :
       {"ValueError: preprocessing of sample 12 failed", "ValueError: cannot relaunch: the check failed",
        "ValueError: Training data validation failed: column missing"})
    EXPECT_EQ(slug_of(diagnosis_of_text("Address already in use, trying the next port\n" + traceback +
                                        std::string(exception) + "\n")),
              "python-error")
        << exception;
}

// Of a hub that answers.
TEST(Precedence, GoodAnswersOfAHubAreNoCause) {
  const std::string hang =
      "[rank0]:[E1115 10:00:00.1 P.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, "
      "OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=600000) ran for 600000 milliseconds\n";
  for (const std::string line :
       {"INFO:httpx:HTTP Request: HEAD https://huggingface.co/gpt2/resolve/main/config.json \"HTTP/1.1 200 OK\"\n",
        "HTTP Request: HEAD https://huggingface.co/gpt2/resolve/main/config.json \"HTTP/1.1 200 OK\"\n",
        "Connecting to huggingface.co (huggingface.co)|3.163.1.2|:443... connected.\n",
        "Download timeout for https://huggingface.co is 10 s\n"}) {
    EXPECT_EQ(slug_of(diagnosis_of_text(line + "Training completed\n")), "success") << line;
    EXPECT_EQ(slug_of(diagnosis_of_text(line + hang)), "nccl-timeout") << line;
  }
  for (const char* line : {"Connecting to huggingface.co|3.163.1.2|:443... failed: Connection timed out.\n",
                           "Failed to connect to huggingface.co port 443\n",
                           "ConnectionError: https://huggingface.co/gpt2 cannot be reached\n"})
    EXPECT_EQ(slug_of(diagnosis_of_text(line)), "hub-unreachable") << line;
}

// DeepSpeed knows the signal, srun the exit code of DeepSpeed; torchruns of two nodes both name their local rank 0.
TEST(Precedence, OfLaunchersThatTellOfOneEnd) {
  EXPECT_EQ(slug_of(diagnosis_of_text("[ERROR] [launch.py:321:sigkill_handler] ['python', 'a.py'] exits with return "
                                      "code = -9\nsrun: error: n1: task 0: Exited with exit code 1\n")),
            "killed");
  const std::string lost = "n1:1:2 [0] socket.h:409 NCCL WARN Net : Connect to 10.0.0.1<4> failed : No route to host\n";
  const std::string failed =
      "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 1) of binary: p\n";
  const Diagnosis diagnosis = diagnosis_of_text(with_prefix("1: ", lost + failed) + with_prefix("0: ", lost + failed));
  EXPECT_EQ(slug_of(diagnosis), "network");
  EXPECT_EQ(diagnosis.first_rank.value_or(kNone), kNone);
  for (const auto& [code, cause] : {std::pair{"1", "unknown"}, {"-9", "killed"}}) {
    const std::string end =
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: " + std::string(code) +
        ") local_rank: 0 (pid: 1) of binary: p\n";
    const Diagnosis of_two = diagnosis_of_text(with_prefix("0: ", end) + with_prefix("1: ", end));
    EXPECT_EQ(slug_of(of_two), cause) << code;
    EXPECT_EQ(of_two.first_rank.value_or(kNone), kNone) << code;
    EXPECT_EQ(diagnosis_of_text(end).first_rank.value_or(kNone), 0) << code;
  }
  // A signal that is not of the process that torchrun names.
  const Diagnosis of_torchrun = diagnosis_of_text(
      "make: *** [Makefile:12: data] Error 137\nERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: "
      "1) local_rank: 3 (pid: 1) of binary: p\n");
  EXPECT_EQ(slug_of(of_torchrun), "unknown");
  EXPECT_EQ(of_torchrun.first_rank.value_or(kNone), 3);
}

}  // namespace
}  // namespace braid
