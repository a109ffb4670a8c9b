#include "doctor/signs.h"

namespace braid {

Role role_of(Sign sign) {
  if (sign <= Sign::NativeCrash) return Role::Cause;
  if (sign <= Sign::TerminatedFromOutside) return Role::Outside;
  if (sign <= Sign::Stopped) return Role::Consequence;
  return sign <= Sign::MonitoredBarrier ? Role::Launcher : Role::Context;
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> table = {
      // How tracebacks and blocks begin: whatever else such a line says.
      {"Traceback (most recent call last)", Sign::TracebackStart},
      {"During handling of the above exception", Sign::ChainDuring},
      {"Root Cause (first observed failure)", Sign::FailureBlock},
      {"Failures:", Sign::FailureBlock},
      {"braid: root cause: rank ", Sign::BraidRootCause},
      {"braid: root cause: host", Sign::BraidRootCause, " cannot be reached from host "},
      {"failed (exitcode: ", Sign::WorkerFailed, "local_rank: "},
      {"exits with return code = ", Sign::WorkerFailed, "local_rank="},  // DeepSpeed

      {"  fix:   ", Sign::BraidFix},
      {"  where: ", Sign::BraidFix},

      // Slurm refuses.
      {"Cannot find GPU specification", Sign::GpuSpecMissing},
      {"invalid partition specified", Sign::BadPartition},
      {"Invalid partition name specified", Sign::BadPartition},
      {"Invalid account or account/partition", Sign::BadAccount},
      {"violates accounting/QOS policy", Sign::BadAccount},
      {"already completing or completed", Sign::Remark},  // the job was over before
      {"Requested node configuration is not available", Sign::StepConfig},
      {"Unable to create step for job", Sign::StepConfig, nullptr, "Invalid account"},

      // Slurm ends a job.
      {"DUE TO TIME LIMIT", Sign::TimeLimit},
      {"DUE TO NODE FAILURE", Sign::NodeFailure},
      {"Node failure on ", Sign::NodeFailure},
      {"STEPD TERMINATED ON ", Sign::NodeFailure},
      {"Task launch for ", Sign::NodeFailure, " failed on node "},
      {"DUE TO PREEMPTION", Sign::Preempted},
      {"DUE TO JOB REQUEUE", Sign::Preempted},
      {"DUE to SIGNAL", Sign::JobCancelled},
      {"oom_kill event", Sign::CgroupOom},
      {"oom-kill event", Sign::CgroupOom},
      {"cgroup out-of-memory handler", Sign::CgroupOom},
      {"memory limit", Sign::CgroupOom, "xceeded"},
      {"Out of memory: Killed process", Sign::CgroupOom},
      {"Memory cgroup out of memory", Sign::CgroupOom},
      {"CANCELLED AT ", Sign::JobCancelled, "*** JOB "},
      {"CANCELLED AT ", Sign::StepCancelled},
      {"srun: error: ", Sign::TaskExit, "task"},
      {"srun: error: ", Sign::NodeFailure, "Communication connection failure"},
      {"interrupt (one more within", Sign::Interrupted},
      {"Received Signals.SIG", Sign::TerminatedFromOutside, "death signal"},
      {"SignalException: Process ", Sign::TerminatedFromOutside},

      // Time-outs and lost peers. They come before causes: such messages often guess at causes ("a network error").
      {"retrieving ncclUniqueId from", Sign::UniqueIdTimeout},
      {"retreiving ncclUniqueId from", Sign::UniqueIdTimeout},  // as older versions of PyTorch have it
      {"failed to pass monitoredBarrier", Sign::MonitoredBarrier},
      {"successfully reached monitoredBarrier", Sign::ConnectionLost},
      {"last enqueued NCCL work", Sign::LastEnqueued},
      {"last enqueued work", Sign::LastEnqueued},
      {"Watchdog caught collective operation timeout", Sign::CollectiveTimeout},
      {"watchdog thread terminated", Sign::CollectiveTimeout},
      {"watchdog got stuck", Sign::CollectiveTimeout},
      {"Heartbeat monitor timed out", Sign::CollectiveTimeout},
      {"Timeout at NCCL work", Sign::CollectiveTimeout},
      {"Some NCCL operations have failed or timed out", Sign::CollectiveTimeout},
      {"flight recorder dump signal", Sign::CollectiveTimeout},
      {"Received a dump signal", Sign::CollectiveTimeout},
      {"Timed out waiting ", Sign::CollectiveTimeout, "operation to complete"},
      {"Application timeout caused pair closure", Sign::CollectiveTimeout},
      {"Got completion from peer", Sign::NetworkTrouble},
      {"Got async event", Sign::NetworkTrouble},
      {"Got completion with status", Sign::NetworkTrouble},
      {"No route to host", Sign::NetworkTrouble},
      {"Network is unreachable", Sign::NetworkTrouble},
      {"Name or service not known", Sign::NetworkTrouble},
      {"Temporary failure in name resolution", Sign::NetworkTrouble},
      {"Connection timed out", Sign::NetworkTrouble},
      {"Connection refused", Sign::NetworkTrouble},
      {"ibv_modify_qp failed", Sign::NetworkTrouble},
      {"ncclSystemError", Sign::NetworkTrouble},
      {"unhandled system error", Sign::NetworkTrouble},
      {"no socket interface found", Sign::NetworkTrouble},
      {"client socket has timed out", Sign::NetworkTrouble},
      {"clients joined", Sign::StoreTimeout, "/"},
      {"wait timeout after", Sign::StoreTimeout},
      {"Socket Timeout", Sign::StoreTimeout},
      {"Timeout waiting for key", Sign::StoreTimeout},
      {"DistStoreError", Sign::StoreTimeout},
      {"RendezvousTimeoutError", Sign::StoreTimeout},
      {"remote process exited or there was a network error", Sign::ConnectionLost},
      {"ncclRemoteError", Sign::ConnectionLost},
      {"Connection closed by", Sign::ConnectionLost},
      {"Connection reset by peer", Sign::ConnectionLost},
      {"onnection was likely closed", Sign::ConnectionLost},
      {"Broken pipe", Sign::ConnectionLost},
      {"NCCL communicator was aborted", Sign::ConnectionLost},
      {"RendezvousConnectionError", Sign::ConnectionLost},
      {"closing signal SIGTERM", Sign::Stopped},
      {"ChildFailedError", Sign::Stopped},

      // Memory, on a GPU or a host.
      {"CUDA out of memory", Sign::GpuOom},
      {"CUDA error: out of memory", Sign::GpuOom},
      {"OutOfMemoryError", Sign::GpuOom},
      {"CUBLAS_STATUS_ALLOC_FAILED", Sign::GpuOom},
      {"cudaErrorMemoryAllocation", Sign::GpuOom},
      {"Cuda failure", Sign::GpuOom, "out of memory"},
      {"uncorrectable ECC error", Sign::Hardware},
      {"fallen off the bus", Sign::Hardware},
      {"NVRM: Xid", Sign::Hardware},
      {"Uncorrectable NVLink error", Sign::Hardware},
      {"CUDA error: unspecified launch failure", Sign::Hardware, "Xid"},
      {"insufficient shared memory (shm)", Sign::SharedMemory},
      {"is killed by signal: Bus error", Sign::SharedMemory},
      {"Bus error", Sign::SharedMemory},
      {"unable to open shared memory object", Sign::SharedMemory},
      {"unable to write to file </torch_", Sign::SharedMemory},
      {"unable to allocate shared memory", Sign::SharedMemory},
      {"creating shared memory segment", Sign::SharedMemory},
      {"/dev/shm/", Sign::SharedMemory, "No space left on device"},
      {"is killed by signal: Killed", Sign::HostOom},
      {"can't allocate memory: you tried", Sign::HostOom},
      {"not enough memory: you tried", Sign::HostOom},
      {"MemoryError", Sign::HostOom},
      {"std::bad_alloc", Sign::HostOom},
      {"Cannot allocate memory", Sign::HostOom},
      {"Unable to allocate ", Sign::HostOom, " for an array"},

      // Files and programs.
      {"No space left on device", Sign::DiskFull},
      {"Disk quota exceeded", Sign::DiskFull},
      {"PytorchStreamWriter failed writing", Sign::DiskFull},
      {"basic_ios::clear: iostream error", Sign::DiskFull},  // torch.save
      {"uv: command not found", Sign::UvMissing},
      {"uv: not found", Sign::UvMissing},
      {": uv: No such file or directory", Sign::UvMissing},
      {"'uv': No such file", Sign::UvMissing},
      {"\"uv\": executable file not found", Sign::UvMissing},
      {"EADDRINUSE", Sign::PortInUse},
      {"ddress already in use", Sign::PortInUse},
      {"No module named 'megatron.core.", Sign::MegatronShadowed},
      {"from 'megatron.core", Sign::MegatronShadowed, "cannot import name"},
      {"ModuleNotFoundError", Sign::MissingImport},
      {"ImportError", Sign::MissingImport},
      {"error while loading shared libraries", Sign::MissingImport},
      {"No module named ", Sign::MissingImport, ": No module named "},
      {"undefined symbol: ", Sign::MissingImport},
      {"'NoneType' object is not an iterator", Sign::CacheNotShared},
      {"Weight mismatch detected", Sign::WeightsDiffer},
      {"size mismatch for ", Sign::StateDictDiffers},
      {"in loading state_dict for", Sign::StateDictDiffers},
      {"key(s) in state_dict", Sign::StateDictDiffers},
      {"launched with torchrun", Sign::NotLaunched, nullptr, "not launched with torchrun, "},
      {"launched using torchrun", Sign::NotLaunched},
      {"launched via torchrun", Sign::NotLaunched},
      {"expected, but not set", Sign::NotLaunched, "environment variable"},
      {"KeyError: 'WORLD_SIZE'", Sign::NotLaunched},
      {"KeyError: 'RANK'", Sign::NotLaunched},
      {"KeyError: 'LOCAL_RANK'", Sign::NotLaunched},
      {"KeyError: 'MASTER_", Sign::NotLaunched},
      {"execve(): ", Sign::NotLaunched},
      {": command not found", Sign::ShellError, ": line "},
      {": command not found", Sign::NotLaunched},
      {": unbound variable", Sign::ShellError, ": line "},
      {": parameter null or not set", Sign::ShellError, ": line "},
      {": syntax error", Sign::ShellError, ": line "},
      {": cannot execute", Sign::ShellError, ": line "},
      {": No such file or directory", Sign::ShellError, ": line "},
      {": Permission denied", Sign::ShellError, ": line "},
      {": not found", Sign::ShellError, ": line "},
      {"can't open file ", Sign::NotLaunched, "[Errno 2]"},
      {"pyxis: ", Sign::NotLaunched, "failed"},
      {": error: unrecognized arguments: ", Sign::PythonError},  // argparse
      {": error: the following arguments are required", Sign::PythonError},
      {": error: argument ", Sign::PythonError},
      {"Segmentation fault", Sign::NativeCrash},
      {"terminate called after throwing", Sign::NativeCrash},
      {"Aborted (core dumped)", Sign::NativeCrash},
      {"KeyboardInterrupt", Sign::Interrupted},
      {"DistBackendError", Sign::ConnectionLost, nullptr, "unhandled cuda error"},
      {"DistNetworkError", Sign::NetworkTrouble},
      {"-- Process ", Sign::SpawnedProcess, " terminated with "},  // torch.multiprocessing.spawn
      {"ProcessExitedException", Sign::SpawnedProcess},
      {"ProcessRaisedException", Sign::SpawnedProcess},

      // What a run says of itself.
      {"num_experts", Sign::Experts},
      {"num-experts", Sign::Experts},
      {"expert_model_parallel", Sign::Experts},
      {"expert-model-parallel", Sign::Experts},
      {"float8", Sign::Fp8},
      {"scale_inv", Sign::Fp8},
      {"quant_method", Sign::Fp8},
      {".weight", Sign::DifferingRow, "\xe2\x9d\x8c"},  // a red cross
      {"save_hf_weights", Sign::SaveArtifacts},
      {"save_artifacts", Sign::SaveArtifacts},
      {"save_hf_pretrained", Sign::SaveArtifacts},
      {"using world size: ", Sign::RunStarts},
      {"restart worker group", Sign::RunStarts},  // torchrun --max-restarts
      {"world size", Sign::WorldSize},
      {"world_size", Sign::WorldSize},
      {"WORLD_SIZE", Sign::WorldSize},
      {"run ended   ", Sign::EndedWell, nullptr, "SIG"},
      {"== ended well, ", Sign::ScriptEndedWell},  // scripts of `braid launch`
      {"== failed with exit code ", Sign::JobExit},
      {", attempt ", Sign::RunStarts, "job "},
      {" ranks: ", Sign::RunStarts, "braid: "},
      {"[after training is done]", Sign::EndedWell},
      {" iteration ", Sign::Progress},
      {"braid: ", Sign::BraidSays},
      {"reduced_train_loss", Sign::Progress},
      {"'loss': ", Sign::Progress},
      {"global_step", Sign::Progress},
      {"slurm_script: line ", Sign::ShellError},  // the batch script, whatever it says of itself
      {"Error: ", Sign::Remark},
      {"Exception: ", Sign::Remark},
      {"error: ", Sign::Remark},
      {"ERROR:", Sign::Remark},
      {"ERROR]", Sign::Remark},
      {" ERROR ", Sign::Remark},
      {"FATAL:", Sign::Remark},
      {"FAILED", Sign::Remark},
      {"Killed", Sign::Remark},
      {"Terminated", Sign::Remark},
  };
  return table;
}

bool fits(const Rule& rule, std::string_view text) {
  return (!rule.also || text.find(rule.also) != std::string_view::npos) &&
         (!rule.unless || text.find(rule.unless) == std::string_view::npos);
}

std::optional<Sign> sign_in(std::string_view text) {
  for (const Rule& rule : rules())
    if (text.find(rule.anchor) != std::string_view::npos && fits(rule, text)) return rule.sign;
  return std::nullopt;
}

}  // namespace braid
