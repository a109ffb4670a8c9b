// The tables of messages and of ends of processes: one row of each test is one format, as the framework named there
// writes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cluster/doctor/diagnosis_of_text.h"

namespace braid {
namespace {

using testing::diagnosis_of_text;
using ::testing::HasSubstr;
using testing::kNone;
using testing::kTraceback;
using ::testing::Not;
using testing::slug_of;
using testing::TemporaryFolder;
using testing::with_prefix;

TEST(EndTable, LaunchersTellHowProcessesEnded) {
  struct Case {
    const char* text;
    const char* cause;
    int rank;
  };
  for (const Case& c :
       {Case{"mpirun noticed that process rank 3 with PID 4242 on node n2 exited on signal 9 (Killed).", "killed", 3},
        {"prterun noticed that process rank 3 with PID 4242 on node n2 exited on signal 11 (Segmentation fault).",
         "segfault", 3},
        {"  Process name: [[59842,1],3]\n  Exit code:    137", "killed", 3},
        {"  Process name: [prterun-n1-4242@1,3]\n  Exit code:    139", "segfault", 3},
        {"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 4242 RUNNING AT n2\n=   EXIT CODE: 9",
         "killed", kNone},
        {"=   RANK 3 PID 4242 RUNNING AT n2\n=   KILLED BY SIGNAL: 9 (Killed)", "killed", 3},
        {"MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 7.", "unknown", 3},
        {"ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.", "shm-bus-error", 2},
        {"[rank: 1] Child process with PID 4242 terminated with code -9. Forcefully terminating", "killed", 1},
        {"['/usr/bin/python', '-u', 'train.py', '--local_rank=7'] exits with return code = -9", "killed", kNone},
        {"  Reason:       OOMKilled\n  Exit Code:    137", "host-oom", kNone},
        {"command terminated with exit code 137", "killed", kNone},
        {"The node was low on resource: memory. Container main was using 9Gi.", "host-oom", kNone},
        {"trainer_1 exited with code 137", "killed", kNone},
        {"[n2:mpispawn_1][child_handler] MPI process (rank: 3, pid: 4242) terminated with signal 11 -> abort job",
         "segfault", 3},
        {"[n2:mpispawn_1][child_handler] MPI process (rank: 3, pid: 4242) exited with status 1\n"
         "[n1:mpirun_rsh][process_mpispawn_connection] mpispawn_1 from node n2 aborted: MPI process error (1)",
         "unknown", 3},
        {"Abort(1090831) on node 3 (rank 3 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:\n"
         "MPIDI_OFI_mpi_init_hook(1473): OFI addrinfo() failed (ofi_init.c:1473)",
         "network", 3},
        {"srun: StepId=4711.0 task 3: exited abnormally\n"
         "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-15T12:40:29 ***",
         "unknown", 3},
        {"srun: error: n1: task 3: Exited with exit code 1\n"
         "slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused",
         "unknown", 3},
        {"slurmstepd: error: execve(): python3.11: No such file or directory\n"
         "srun: error: n1: task 0: Exited with exit code 2\nsrun: error: n1: task 1: Exited with exit code 2",
         "not-launched", kNone},
        {"make: *** [Makefile:12: train] Error 137", "killed", kNone},
        {"run.sh: line 12: 4242 Killed                  python train.py", "killed", kNone},
        {"run.sh: line 12: 4242 Hangup                  python train.py", "hangup", kNone},
        {"UNAVAILABLE: Task /job:jax_worker/replica:0/task:3 heartbeat timeout.", "node-failure", 3},
        {"Caught signal SIGHUP on n1: this job is preempted.", "preempted", kNone},
        {"prterun noticed that process rank 3 with PID 4242 on node n2 exited on\nsignal 9 (Killed).", "killed", 3},
        {"ABORT!!! Out of all 4 trainers, the trainer process with rank=[3] was aborted.", "unknown", 3},
        {"Exception: process 3 terminated with signal SIGKILL", "killed", 3},
        {"The replica workerpool1-1 exited with a non-zero status of 137.", "killed", kNone},
        {"submitit WARNING (2026-11-15 10:00:00,123) - Caught signal 10 on n1: this job is timed-out.", "time-limit",
         kNone},
        {"(autoscaler +41m10s) Node 10.0.3.4 is draining: DRAIN_NODE_REASON_PREEMPTION", "preempted", kNone},
        {"TPUPollingThread found TPU b't5-pre' in state PREEMPTED, and health HEALTHY.", "preempted", kNone},
        {"  Warning  Evict  12s  volcano  Pod is evicted, because of reclaim", "preempted", kNone},
        {"SIGTERM: Preemption imminent.", "preempted", kNone},
        {"I 06-29 12:57:20 spot_utils.py:390] Job 1 (status: CANCELLED).", "cancelled", kNone},
        {"zsh: warning: 1 jobs SIGHUPed", "hangup", kNone},
        {"2026/11/15 13:50:06 bds: Received OS signal 'hangup'", "hangup", kNone},
        {"Your notebook tried to allocate more memory than is available. It has restarted.", "host-oom", kNone},
        {"*** SIGSEGV (@0x0) received by PID 24042 (TID 0x7f64) from PID 0; stack trace: ***", "segfault", kNone},
        {"sbatch: error: Batch job submission failed: No partition specified or system default partition",
         "bad-partition", kNone},
        {"sbatch: error: Batch job submission failed: Access/permission denied", "bad-account", kNone},
        {"srun: error: Unable to allocate resources: More processors requested than permitted", "step-config", kNone},
        {"ErrorMessage \"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\"", "gpu-oom", kNone},
        {"srun: error: Application launch failed: Unable to layout tasks on given cpus", "step-config", kNone},
        {"srun: error: task 0 launch failed: Plugin initialization failed", "not-launched", kNone},
        {"n2: u@n2: Permission denied (publickey,password).", "not-launched", kNone},
        {"FATAL:   could not open image /local/a.sif: lstat /local/a.sif: no such file", "not-launched", kNone},
        {"FATAL:   could not open image /local/a.sif: lstat /local/a.sif: no such file\n"
         "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-15T12:40:29 ***",
         "container-cache-not-shared", kNone},
        {"E1115 10:00:00.123456 4242 c.cc:1] DEADLINE_EXCEEDED: Barrier timed out. Id: sync_3::0. Timed out task "
         "names:\n/job:jax_worker/replica:0/task:3",
         "nccl-timeout", 3},
        {"DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0.", "rendezvous", kNone},
        {"HorovodBroadcast_step_0 [missing ranks: 3]\nOne or more rank is stalled for longer than 600 seconds. Will "
         "shutdown.",
         "nccl-timeout", 3},
        {"total images/sec: 2811.44", "success", kNone},
        {"Your training has been finished!", "success", kNone},
        {"`Trainer.fit` stopped: `max_epochs=10` reached.", "success", kNone},
        {"{'train_runtime': 1234.5, 'train_loss': 1.3, 'epoch': 3.0}", "success", kNone}}) {
    const Diagnosis diagnosis = diagnosis_of_text(fmt::format("iter 10: loss 3.2, time 123.4ms\n{}\n", c.text));
    EXPECT_EQ(slug_of(diagnosis), c.cause) << c.text;
    EXPECT_EQ(diagnosis.first_rank.value_or(kNone), c.rank) << c.text;
  }
}

// One message each, of schedulers, launchers, containers, clouds and shells.
TEST(EndTable, FamiliesOfMessages) {
  struct Case {
    const char* cause;
    std::vector<const char*> messages;
  };
  const std::vector<Case> cases = {
      {"time-limit",
       {"State: TIMEOUT (exit code 0)", "JobState=DEADLINE Reason=DeadLine",
        "Job 4711 exceeded job hard limit \"h_rt\" of queue \"gpu.q@n1\" (3601 > limit:3600) - sending SIGKILL",
        "1.2s: job.exception type=timeout severity=0 resource allocation expired",
        "\tJob exceeded allowed execute duration of 1+00:00:00", "[mpiexec@n1] APPLICATION TIMED OUT, TIMEOUT = 3600s",
        "timeout: sending signal TERM to command 'python'", "ERROR: Job failed: execution took longer than 1h0m0s",
        "modal.exception.FunctionTimeoutError: Task's current input hit its timeout of 3600s",
        "statusReason: Job attempt duration exceeded timeout", "srun: error: n1: task 0: Exited with exit code 124"}},
      {"preempted",
       {"Handling auto-requeue signal: 10", "Task failed due to Spot VM preemption with exit code 50001.",
        "2026-11-15 10:00:00 Interrupted - Training job", "##[error]The runner has received a shutdown signal."}},
      {"node-failure",
       {"slurmstepd: error: Prolog failed on node n7", "srun: error: Prolog hung on node n7",
        "srun: error: Nodes n[7-8] are still not ready", "JobState=BOOT_FAIL Reason=None",
        "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 0",
        "srun: error: Aborting, io error and missing step on node 0",
        "srun: error: timeout waiting for task launch, started 63 of 64 tasks",
        "0.5s: job.exception type=exec severity=0 lost contact with job shell on broker n7 (rank 3)",
        "0.5s: job.exception type=node-failure severity=0 broker n7 is offline",
        "024 (4711.000.000) 2026-11-15 12:50:29 Job reconnection failed",
        "Task state is FAILED due to VM reporting timeout with exit code 50002.",
        "Run train-1 stopped: Node failure detected on node n7"}},
      {"host-oom",
       {"State: OUT_OF_MEMORY (exit code 0)",
        "Job 4711 exceeded job hard limit \"h_vmem\" of queue \"gpu.q@n1\" (21G > limit:20G) - sending SIGKILL",
        "\tError from slot1@n1: Job has gone over cgroup memory limit of 65536 megabytes.",
        "Nov 15 10:00:00 n1 systemd[1]: train.service: Failed with result 'oom-kill'."}},
      {"cancelled",
       {"State: CANCELLED (exit code 0)", "salloc: Job allocation 4711 has been revoked.",
        "[Nov15 12:40] job.exception type=cancel severity=0 userid=1000", "^Cmpirun: killing job...",
        "[mpiexec@n1] Sending Ctrl-C to processes as requested", "srun: Force Terminated job 4711",
        "[INFO] [launch.py:319:sigkill_handler] Main process received SIGINT, exiting",
        "ray.exceptions.TaskCancelledError: Task: TaskID(abc) was cancelled", "Job 'raysubmit_abc' was stopped",
        "##[error]The operation was canceled.", "  Normal  Killing  10s  kubelet  Stopping container pytorch",
        " [exiting program after receiving SIGTERM.] datetime: 2026-11-15 10:00:00"}},
      {"killed",
       {"train.service: Main process exited, code=killed, status=9/KILL", "zsh: killed     python train.py",
        "[1]    4242 killed     python train.py", "[1]  + 4242 killed     python train.py",
        "[1]+  Killed                  nohup python train.py", "Task exited with return code Negsignal.SIGKILL"}},
      {"segfault",
       {"Exited with signal termination: Segmentation fault.", "[1]    4242 segmentation fault  python train.py",
        "train.service: Main process exited, code=dumped, status=11/SEGV"}},
      {"not-launched",
       {"There are not enough slots available in the system to satisfy the 8",
        "zsh: command not found: torchrun",
        "Your job has requested more processes than the ppr for",
        "trainer_1 exited with code 127",
        "A request was made to bind to that would result in binding more",
        "sbatch: error: Unable to open file train.sbatch",
        "sbatch: error: Batch script contains DOS line breaks",
        "srun: error: Unable to confirm allocation for job 4711: Invalid job id specified",
        "srun: error: Unable to allocate resources: Invalid/Protocol authentication error",
        "srun: error: Invalid MPI type 'pmix', please check --mpi=list for acceptable types",
        "0.1s: job.exception type=exec severity=0 task 0 (host n1): start failed: pythn: No such file or directory",
        "Error from slot1@n1: Failed to execute '/var/lib/condor/execute/dir_1/condor_exec.exe': (errno=2)",
        "ValueError: No slot '8' specified on host 'localhost'",
        "SSH with hostname n2 port 22 was not successful.",
        "pdsh@n1: module path \"/usr/lib/pdsh\" insecure.",
        "(autoscaler +1m10s) Error: No available node types can fulfill resource request {'GPU': 8.0}.",
        "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
        "Error: initializing source docker://x/y: reading manifest latest in docker.io/x/y: unauthorized",
        "enroot-nsenter: failed to execute: /etc/rc: Permission denied",
        "ResourceInitializationError: unable to pull secrets or registry auth",
        "Resources are insufficient in region: us-central1.",
        "11-15-2026 12:40:29:123 4242 main: Error initializing RM connection. Exiting.",
        "/.singularity.d/actions/exec: 9: exec: --nv: not found",
        "bash: ./train.sh: Permission denied",
        "zsh: permission denied: ./train.sh",
        "FileNotFoundError: [Errno 2] No such file or directory: 'mpirun'",
        "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.",
        "/usr/bin/python: can't find '__main__' module in '/w/train'",
        "See 'docker run --help'.",
        "kubectl: error: You must be logged in to the server (Unauthorized)"}},
      {"step-config",
       {"sbatch: error: Batch job submission failed: Memory required by task is not available",
        "qsub: Job violates queue and/or server resource limits", "Unable to run job: unknown resource \"gpux\".",
        "qsub: Illegal attribute or resource value Resource_List.select",
        "flux-alloc: ERROR: [Errno 22] unsatisfiable request",
        "ERROR: Not enough resources available to schedule job."}},
      {"bad-partition", {"Unable to run job: Job was rejected because job requests unknown queue \"gpux.q\"."}},
      {"network", {"ORTE does not know how to route a message to the specified daemon"}},
      {"disk-full", {"{\"NonCompliant\":\"Disk full while running job.\"}"}},
      {"python-error", {"ErrorMessage \"KeyError: 'text'"}},
      {"gpu-oom",
       {"AlgorithmError: Traceback (most recent call last): File \"t.py\", line 4, in <module> main() RuntimeError: "
        "CUDA "
        "out of memory. Tried to allocate 2.00 GiB, exit code: 1"}},
      {"success",
       {"\t(1) Normal termination (return value 0)",
        " [exiting program at iteration 1000] datetime: 2026-11-15 10:00:00",
        " [exiting program after 1380.0 minutes] datetime: 2026-11-15 10:00:00"}},
  };
  for (const Case& c : cases)
    for (const char* message : c.messages) {
      const Diagnosis diagnosis = diagnosis_of_text(fmt::format("loading the data\n{}\n", message));
      EXPECT_EQ(slug_of(diagnosis), c.cause) << message;
      EXPECT_EQ(diagnosis.first_rank.value_or(kNone), kNone) << message;
    }
}

TEST(ErrorTable, FamiliesOfMessages) {
  struct Case {
    const char* cause;
    std::vector<const char*> messages;
  };
  const std::vector<Case> cases = {
      {"cuda-error",
       {"RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: no kernel image", "RuntimeError: The NVIDIA driver on your system is too old",
        "RuntimeError: cuDNN error: CUDNN_STATUS_BAD_PARAM", "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED",
        "RuntimeError: HIP error: invalid device function", "RuntimeError: Triton Error [CUDA]: misaligned address",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess.",
        "RuntimeError: the provided PTX was compiled with an unsupported toolchain.",
        "RuntimeError: MIOpen Error: miopenStatusUnknownError", "RuntimeError: CURAND_STATUS_LAUNCH_FAILURE",
        "triton.runtime.autotuner.OutOfResources: out of resource: registers",
        "RuntimeError: Expected is_sm80 || is_sm90 to be true, but got false.",
        "AssertionError: Device compute capability 8.9 or higher required for FP8 execution.",
        "AssertionError: libcuda.so cannot found!",
        "RuntimeError: handle_0 INTERNAL ASSERT FAILED at \"../c10/cuda/driver_api.cpp\":15, please report a bug"}},
      {"gpu-oom",
       {"RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.",
        "ValueError: Free memory on device is less than desired GPU memory utilization (0.9, 71.2 GiB).",
        "ValueError: The max seq len is larger than the KV cache. Try increasing `gpu_memory_utilization`.",
        "RuntimeError: No executable batch size found, reached zero.",
        "RuntimeError: rocblas error: rocblas_status_memory_error"}},
      {"host-oom",
       {"ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "polars.exceptions.ComputeError: memory allocation of 34359738368 bytes failed",
        "OSError: Cannot allocate write+execute memory for ffi.callback()",
        "TerminatedWorkerError: A worker was terminated, maybe by an excessive memory usage. The exit codes are {-9}"}},
      {"disk-full",
       {"OSError: [Errno 122] Disk quota exceeded: '/w/ckpt'",
        "RuntimeError: [enforce fail at inline_container.cc:325] . unexpected pos 1207959616 vs 1207959510",
        "ray.exceptions.OutOfDiskError: Local disk is full",
        "errors_impl.ResourceExhaustedError: /ckpt/model.ckpt; No space left on device",
        "OSError: 16777216 requested and 7340032 written"}},
      {"shm-bus-error",
       {"RuntimeError: posix_fallocate failed : No space left on device",
        "RuntimeError: Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes"}},
      {"port-in-use",
       {"RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        "OSError: [Errno 48] error while attempting to bind",
        "RuntimeError: The server socket has failed to listen on any local network address.",
        "ConnectionError: Tried to launch on port `29500`, but another process is utilizing it.",
        "RuntimeError: Port 29500 is already in use"}},
      {"import-error",
       {"ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by a.so)",
        "AttributeError: partially initialized module 'torch' has no attribute 'nn'",
        "importlib.metadata.PackageNotFoundError: No package metadata was found for bitsandbytes",
        "RuntimeError: Numpy is not available", "AttributeError: _ARRAY_API not found",
        "XlaRuntimeError: INTERNAL: NCCL operation ncclGetUniqueId(&id) failed: Unable to load NCCL library."}},
      {"weight-load-mismatch",
       {"ValueError: Size mismatch between saved torch.Size([2, 3]) and current: torch.Size([2, 4]) for a.weight",
        "ValueError: Requested shape: (2, 3) is not compatible with the stored shape: (3, 2).",
        "errors_impl.InvalidArgumentError: Assign requires shapes of both tensors to match.",
        "ValueError: loaded state dict contains a parameter group that doesn't match the size",
        "CheckpointingException: Cannot find global shape metadata for N-D flattened tensor",
        "ValueError: decoder.layers has shape [1] in the checkpoint, expected shape [2]"}},
      {"fp8-roundtrip-mismatch", {"AssertionError: FP8 round trip mismatch for layers.0.weight"}},
      {"collective-mismatch",
       {"errors_impl.FailedPreconditionError: Mismatched allreduce tensor shapes: One or more ranks sent",
        "RuntimeError: [enforce fail at pair.cc:1] op.preamble.length <= op.nbytes. 12 vs 4"}},
      {"hub-unreachable",
       {"OSError: We couldn't connect to 'https://huggingface.co' to load this file",
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x",
        "requests.exceptions.ReadTimeout: (ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co')\"))",
        "OSError: You are trying to access a gated repo.",
        "ConnectionError: (ProtocolError('Connection aborted.', RemoteDisconnected('x')), '(Request ID: 7c)')",
        "http.client.RemoteDisconnected: Remote end closed connection without response",
        "ssl.SSLError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
        "OSError: bert is not a local folder and is not a valid model identifier listed on 'https://huggingface.co'",
        "urllib.error.HTTPError: HTTP Error 403: Forbidden",
        "errors_impl.AbortedError: All 10 retry attempts failed. The last failure: Error executing an HTTP request",
        "RuntimeError: CAS service error : Reqwest Error: HTTP status client error (403 Forbidden)",
        "RuntimeError: IO Error: error sending request for url (https://cas-server.xethub.hf.co)",
        "PermissionError: The AWS Access Key Id you provided does not exist in our records.",
        "fsspec.exceptions.FSTimeoutError", "ConnectionError: Offline mode is enabled.",
        "ConnectionError: Couldn't find cache for allenai/c4 for config 'en'",
        "OSError: (('pipe:curl -s -L https://x/a.tar',), {}): exit 22 (read) {} @ <Pipe>"}},
      {"nan-loss",
       {"AssertionError: Rank 3: found NaN in local forward loss calculation", "ValueError: Loss is nan, stopping",
        "FloatingPointError: Minimum loss scale reached (0.0001).",
        "RuntimeError: the gradients have non-finite values",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "errors_impl.InvalidArgumentError: Gradient for w is NaN : Tensor had NaN values",
        "NanLossDuringTrainingError: NaN loss during training.",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."}},
      {"too-many-files",
       {"OSError: [Errno 24] Too many open files", "RuntimeError: received 0 items of ancdata",
        "errors_impl.ResourceExhaustedError: /logs/events.out; Too many open files"}},
      {"python-error",
       {"AssertionError: An error occurred: a tensor on cuda:0 is not on the expected device meta!",
        "FatalSampleError: encode_sample could not open image a.jpg",
        "AttributeError: 'Namespace' object has no attribute 'rendezvous_endpoint'",
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
        "ValueError: unknown key in {'gpu_memory_utilization': 0.5}"}},
      {"not-launched", {"RuntimeError: Using hostfile at /job/hostfile but host=n2 was not reachable via ssh."}},
      {"unused-parameters",
       {"RuntimeError: Expected to have finished reduction in the prior iteration before x",
        "RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss"}},
      {"rendezvous",
       {"torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 3/4 clients joined.",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to connect to (n, "
        "1)."}},
      {"segfault", {"RuntimeError: DataLoader worker (pid 42) is killed by signal: Segmentation fault."}},
  };
  for (const Case& c : cases)
    for (const char* message : c.messages) {
      const Diagnosis diagnosis = diagnosis_of_text(with_prefix(
          "[rank3]: ",
          fmt::format("Traceback (most recent call last):\n  File \"/w/a.py\", line 1, in f\n{}\n", message)));
      EXPECT_EQ(slug_of(diagnosis), c.cause) << message;
      EXPECT_EQ(diagnosis.first_rank, 3) << message;
    }
}

TEST(ErrorTable, AnExceptionThatNamesARankEndsATracebackWithoutAPrefix) {
  const Diagnosis diagnosis = diagnosis_of_text(
      "Traceback (most recent call last):\n  File \"/w/a.py\", line 1, in f\nRuntimeError: Timed out initializing "
      "process group in store based barrier on rank: 1, for key: store_based_barrier_key:1\n");
  EXPECT_EQ(slug_of(diagnosis), "rendezvous");
  EXPECT_EQ(diagnosis.first_rank, 1);
}

// A traceback that a service quotes in one line of JSON.
TEST(ErrorTable, QuotedTracebacksAreRead) {
  const Diagnosis diagnosis = diagnosis_of_text(
      "message: \"The replica w-1 failed. \\nTraceback (most recent call last):\\n  File \\\"a.py\\\", line 1, in f\\n"
      "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.\\n\"\n");
  EXPECT_EQ(slug_of(diagnosis), "hub-unreachable");
}

// XLA says that something failed inside, and before that what it was.
TEST(ErrorTable, VagueExceptionsAreExplainedByWhatStandsBefore) {
  const std::string vague = with_prefix(
      "",
      "Traceback (most recent call last):\n  File \"/w/a.py\", line 1, in f\njaxlib.XlaRuntimeError: INTERNAL: "
      "Failed to execute XLA Runtime executable\n");
  EXPECT_EQ(slug_of(diagnosis_of_text(vague)), "python-error");
  const std::string told = "INTERNAL: NCCL operation ncclCommInitRank() failed: unhandled cuda error\n";
  EXPECT_EQ(slug_of(diagnosis_of_text(told + vague)), "cuda-error");
}

// Only the launcher says that it starts again: the workers' last words still count.
TEST(Restart, ThatNeverCameExcusesNothing) {
  const std::string steps = "iter 10: loss 3.2, time 1ms\n", announced = "will restart worker group\n";
  EXPECT_EQ(slug_of(diagnosis_of_text(steps + kTraceback + announced)), "python-error");
  EXPECT_EQ(
      slug_of(diagnosis_of_text(steps + kTraceback + announced + "iter 20: loss 3.1, time 1ms\nTraining completed\n")),
      "success");
}

TEST(ErrorTable, AWatchdogDiesOfWhatItSays) {
  for (const auto& [message, cause] : std::vector<std::pair<const char*, const char*>>{
           {"CUDA error: an illegal memory access was encountered", "cuda-error"},
           {"CUDA error: out of memory", "gpu-oom"},
           {"CUDA error: uncorrectable ECC error encountered", "node-failure"},
           {"[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", "nccl-timeout"}}) {
    const Diagnosis diagnosis = diagnosis_of_text(
        fmt::format("[rank3]:[E1115 10:00:00.1 P.cpp:1] [PG 0 Rank 3] Process group watchdog thread terminated with "
                    "exception: {}\nterminate called after throwing an instance of 'c10::DistBackendError'\n",
                    message));
    EXPECT_EQ(slug_of(diagnosis), cause);
    EXPECT_EQ(diagnosis.first_rank, 3) << message;
  }
}

std::string timed_out(int rank, const char* operation) {
  return fmt::format(
      "[rank{0}]:[E1115 10:00:00.1 P.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
      "WorkNCCL(SeqNum=77, OpType={1}, NumelIn=10, NumelOut=10, Timeout(ms)=600000) ran for 600000 milliseconds\n",
      rank, operation);
}

TEST(Mismatch, DifferentOperationsAtOneNumberNameTheirRanks) {
  std::string text;
  for (int rank = 0; rank < 4; ++rank) text += timed_out(rank, rank == 2 ? "BROADCAST" : "ALLREDUCE");
  const Diagnosis diagnosis = diagnosis_of_text(text);
  EXPECT_EQ(slug_of(diagnosis), "collective-mismatch");
  EXPECT_EQ(diagnosis.first_rank, 2);
  EXPECT_THAT(diagnosis.explanation,
              HasSubstr("At sequence number 77 ranks 0-1,3 called ALLREDUCE of 10, rank 2 called BROADCAST of 10."));
  EXPECT_EQ(slug_of(diagnosis_of_text(timed_out(0, "ALLREDUCE") + timed_out(1, "ALLREDUCE"))), "nccl-timeout");
}

TEST(Advice, IsForTheLauncherInTheLog) {
  const std::string killed = "iter 10: loss 3.2, time 1ms\n";
  EXPECT_THAT(diagnosis_of_text(killed + "srun: error: n1: task 3: Killed\n").fix, HasSubstr("sacct"));
  const std::string by_torchrun = diagnosis_of_text(killed +
                                                    "torch.distributed.elastic.multiprocessing.api: [ERROR] failed "
                                                    "(exitcode: -9) local_rank: 3 (pid: 4242) of binary: python\n")
                                      .fix;
  EXPECT_THAT(by_torchrun, HasSubstr("dmesg"));
  EXPECT_THAT(by_torchrun, Not(HasSubstr("sacct")));
  EXPECT_THAT(diagnosis_of_text(killed + "Reason: OOMKilled\n").fix, HasSubstr("kubectl"));
}

TEST(EvidenceText, IsCutAroundWhatMatched) {
  const Diagnosis diagnosis =
      diagnosis_of_text("step " + std::string(9000, 'x') + " CUDA out of memory. Tried to allocate 2.00 GiB " +
                        std::string(9000, 'y') + "\n");
  EXPECT_EQ(slug_of(diagnosis), "gpu-oom");
  EXPECT_THAT(to_text(diagnosis), HasSubstr("... xxx"));
  EXPECT_THAT(to_text(diagnosis), HasSubstr("CUDA out of memory. Tried to allocate 2.00 GiB yyy"));
}

TEST(ReportText, FitsATerminal) {
  const std::string text =
      to_text(diagnosis_of_text("[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to "
                                "allocate 1.50 GiB.\nsrun: error: a31: task 5: Exited with exit "
                                "code 1\nsrun: error: a31: tasks 0-4,6-7: Terminated\n"));
  std::size_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.find("job.log:") == std::string::npos) widest = std::max(widest, line.size());  // evidence is quoted whole
  EXPECT_LE(widest, 80u) << text;
  EXPECT_THAT(text, HasSubstr("fix:\n  Use a smaller"));
}

TEST(DeviceMemory, IsToldOfTheDeviceThatTheMessageNames) {
  const Diagnosis tpu = diagnosis_of_text(
      "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: TPU backend error: Ran out of memory in memory space "
      "hbm. Used 17.3G of 15.9G hbm.\n");
  EXPECT_EQ(slug_of(tpu), "gpu-oom");
  EXPECT_THAT(tpu.explanation, HasSubstr("A TPU ran out of memory"));
  EXPECT_THAT(tpu.fix, Not(HasSubstr("CUDA")));
}

TEST(FileNames, AreNoProofOfARank) {
  const TemporaryFolder folder;
  std::vector<std::string> skipped;
  const auto diagnosis_of = [&](const std::string& path) { return examine_logs(find_logs({path}), {}, skipped); };
  EXPECT_FALSE(diagnosis_of(folder.write("rank3.log", kTraceback)).first_rank);
  folder.write("rank4.log", "all is well\n");
  EXPECT_EQ(diagnosis_of(folder.path()).first_rank, 3);  // one of several, told apart by their names
  folder.write("rank3.log", "[rank0]: hello\n[rank7]: hello\n" + kTraceback);
  EXPECT_FALSE(diagnosis_of(folder.path()).first_rank);  // it has lines of many ranks
}

TEST(NoFalseAllClear, OnlyAnEndIsASuccess) {
  const std::string steps = "iter 10: loss 3.2, time 1ms\niter 20: loss 3.1, time 1ms\n";
  EXPECT_EQ(slug_of(diagnosis_of_text(steps)), "unknown");
  EXPECT_EQ(slug_of(diagnosis_of_text(steps + "Training completed\n")), "success");
  EXPECT_EQ(slug_of(diagnosis_of_text(steps + "Training completed\n" + kTraceback)), "python-error");
  EXPECT_EQ(slug_of(diagnosis_of_text("Training completed\n" + steps)), "unknown");  // of something before
  EXPECT_EQ(slug_of(diagnosis_of_text(steps + "Training completed\nException ignored in: <function f>\n" + kTraceback)),
            "success");
}

}  // namespace
}  // namespace braid
