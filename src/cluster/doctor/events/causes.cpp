#include "cluster/doctor/events/causes.h"

#include <array>
#include <csignal>
#include <cstddef>
#include <map>

namespace braid {
namespace {

constexpr std::array<CauseText, static_cast<std::size_t>(Cause::Unknown) + 1> kTexts = {{
    {Cause::GpuOom, "gpu-oom", "A GPU ran out of memory.",
     "Use a smaller micro batch or sequence, recompute activations, or split the model further (tp, pp, cp, dp shards "
     "of the optimizer). If much is reserved but not allocated, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."},
    {Cause::HostOom, "host-oom", "A process ran out of host memory, or was killed for it.",
     "Use fewer data loader workers or less prefetching, or a host with more memory; `dmesg -T` on that host shows "
     "which process was killed and how much memory it used.",
     "Ask Slurm for all of the node's memory (--mem=0 or --exclusive); `sacct -j JOB "
     "--format=JobID,State,ExitCode,MaxRSS` shows how much was used.",
     "Raise the pod's memory limit (resources.limits.memory); `kubectl describe pod POD` shows the current limit."},
    {Cause::MoeOom, "moe-oom", "A GPU ran out of memory in a model with experts.",
     "TP does not shrink experts, only EP does: raise the expert parallel size, and the number of nodes with it."},
    {Cause::TimeLimit, "time-limit", "The job reached its time limit; nothing failed before.",
     "Ask for more time, or save before the limit and resume from that checkpoint.",
     "Set the time with --time; with `sbatch --signal=USR1@300` a run can save in time.",
     "The limit is the job's activeDeadlineSeconds."},
    {Cause::Preempted, "preempted", "The job was preempted, or put back into the queue.",
     "Resume from the last checkpoint.",
     "With `sbatch --requeue --open-mode=append` Slurm restarts the job automatically."},
    {Cause::NodeFailure, "node-failure", "A node failed; the errors of the other ranks are consequences.",
     "Start again without that node, and tell its administrators; `nvidia-smi -q` and `dmesg -T` on it show GPU "
     "errors.",
     "`sbatch --exclude=HOST` excludes the node; `scontrol show node HOST` shows its state.",
     "`kubectl cordon NODE` keeps new pods away; `kubectl describe node NODE` shows its state."},
    {Cause::Cancelled, "cancelled", "A user or a system outside the job ended it; nothing failed before.",
     "If it was not you, find out who else could have ended it: a scheduler, an administrator, a closed session.",
     "`sacct -j JOB --format=JobID,State,ExitCode,Comment` shows who or what cancelled it."},
    {Cause::PortInUse, "port-in-use", "The rendezvous port is already in use on that host.",
     "Another job or a leftover process uses it (`ss -ltnp` shows which): choose another --master-port (or "
     "--rdzv-endpoint=HOST:0).",
     "Under Slurm, torchrun needs --ntasks-per-node=1; with 8 tasks per node, each task starts 8 ranks on the same "
     "port."},
    {Cause::ImportError, "import-error", "A Python module or library cannot be imported.",
     "Install it in the environment or image that all ranks use, or correct PYTHONPATH. If it is custom model code "
     "that only rank 0 loads when it saves artifacts, catch ImportError as well as OSError in the code that saves."},
    {Cause::PythonError, "python-error", "A rank failed with an exception.",
     "Correct what the exception reports; the innermost frame shows where it was raised."},
    {Cause::Rank0BarrierTimeout, "rank0-barrier-timeout",
     "Ranks waited at a barrier for rank 0 to create a communicator, and rank 0 did not arrive.",
     "Look at the end of rank 0's log. It may be saving or exporting for a long time (raise the time-out to 60 min: "
     "init_process_group(timeout=timedelta(minutes=60)) or --distributed-timeout-minutes 60), it may have ignored an "
     "exception, or it may be unreachable (try other nodes)."},
    {Cause::ArtifactSaveHang, "artifact-save-hang",
     "Rank 0 was saving weights or artifacts while the others waited for it at a barrier, until they timed out.",
     "Raise the time-out to 60 min (--distributed-timeout-minutes 60), and save to a faster file system."},
    {Cause::DataRankCascade, "data-rank-cascade",
     "One rank failed while it loaded or merged its data; the others then timed out or lost their connection to it.",
     "Correct or skip that sample; the time-outs of the other ranks are only consequences."},
    {Cause::NcclTimeout, "nccl-timeout", "Ranks waited in a collective for a rank that never joined it.",
     "Look at what the silent rank did last (py-spy dump, its log). If it was slow but not stuck, raise the time-out; "
     "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 record more the next time."},
    {Cause::Network, "network", "The connection between nodes failed.",
     "Check the nodes (`ibstat`, `ping`), try others, set NCCL_SOCKET_IFNAME to the right interface, and run once with "
     "NCCL_DEBUG=INFO.",
     "`sinfo -R` lists nodes with problems; `sbatch --exclude=HOST` excludes one."},
    {Cause::ContainerCacheNotShared, "container-cache-not-shared",
     "One node has data or an image that the other nodes cannot see.",
     "Set NEMO_HOME (and HF_HOME) to a folder on the shared file system, mounted into every container."},
    {Cause::DiskFull, "disk-full", "A file system is full, or a quota is used up.",
     "Free some space or write elsewhere (`df -h`, `quota`). A container's /root/.cache is small: for uv and pip, set "
     "UV_CACHE_DIR and PIP_CACHE_DIR to folders on the shared file system."},
    {Cause::ShmBusError, "shm-bus-error", "Shared memory (/dev/shm) is full: a process was killed by SIGBUS.",
     "Make /dev/shm larger (docker --shm-size=16g or --ipc=host), or use fewer data loader workers.", "",
     "In a pod, mount an emptyDir with `medium: Memory` at /dev/shm."},
    {Cause::Fp8RoundtripMismatch, "fp8-roundtrip-mismatch",
     "The weights were compared with an fp8 original after a conversion to bf16 and back: they are expected to differ.",
     "Nothing is wrong, and a larger tolerance does not help: multiply the original by its scales (weight_scale_inv) "
     "before the comparison, or compare with a bf16 original."},
    {Cause::NotLaunched, "not-launched",
     "The program was not started as a distributed program, or did not start at all.",
     "Start it with torchrun, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each process.",
     "Under srun, set RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID inside each task."},
    {Cause::GpuSpecMissing, "gpu-spec-missing", "The job did not tell Slurm how many GPUs it needs.",
     "Give --gpus-per-node=8 to both salloc (or sbatch) and srun."},
    {Cause::BadPartition, "bad-partition", "There is no such partition.",
     "`sinfo --summarize` lists the partitions; choose one with -p."},
    {Cause::BadAccount, "bad-account",
     "The account is not allowed, or not with this partition, or not for a job of this size.",
     "`sacctmgr -nP show assoc where user=$USER format=account,partition` lists what you may use; `sacctmgr show qos` "
     "lists the limits."},
    {Cause::StepConfig, "step-config", "srun requests nodes or resources that the allocation does not have.",
     "Leave out -w (--nodelist), and request at most the nodes, tasks and GPUs of the allocation."},
    {Cause::UvMissing, "uv-missing", "uv is not installed in the container.",
     "Use an image with uv, or run `pip install uv` first."},
    {Cause::MegatronShadowed, "megatron-shadowed",
     "The image's megatron-core is imported instead of the local checkout.",
     "Before the run, use `pip install --no-deps -e 3rdparty/Megatron-LM`, or `uv sync` (SLURM_LOCALID 0 syncs, the "
     "others wait), or set PYTHONPATH=<workdir>/3rdparty/Megatron-LM."},
    {Cause::WeightLoadMismatch, "weight-load-mismatch", "The weights of a checkpoint do not match the model.",
     "The model's configuration (hidden size, vocabulary padding, layers, tied embeddings) must be the one the "
     "checkpoint was written with; names that are missing or unexpected show which part differs."},
    {Cause::CudaError, "cuda-error", "A CUDA kernel, library or driver failed.",
     "Run once with CUDA_LAUNCH_BLOCKING=1 to see which call failed. Illegal accesses and asserts come from indices "
     "out of range (token ids beyond the vocabulary, labels beyond the number of classes) or a broken kernel; \"no "
     "kernel image\" and \"too old\" come from a build for another GPU or driver (`nvidia-smi`)."},
    {Cause::HubUnreachable, "hub-unreachable", "A model, tokenizer or data set could not be downloaded.",
     "Download it once where there is a network (`huggingface-cli download`), put HF_HOME on a shared file system and "
     "set HF_HUB_OFFLINE=1 for the job. If the hub refused (401, 403, 429): log in, request access, or let only one "
     "rank download."},
    {Cause::NanLoss, "nan-loss", "Training was stopped because the loss or the gradients are not finite.",
     "Resume from an earlier checkpoint with a lower learning rate or other data; inspect the samples of that step; "
     "train in bf16 instead of fp16; clip gradients."},
    {Cause::Segfault, "segfault", "A rank crashed in native code; the log does not show why.",
     "Run once with PYTHONFAULTHANDLER=1 and `ulimit -c unlimited`: the stack shows in which library it crashed. The "
     "most frequent reason is an extension built for another version of PyTorch, CUDA or NCCL."},
    {Cause::TooManyFiles, "too-many-files", "A process has too many open files.",
     "Raise the limit (`ulimit -n 65536` in the script that starts the ranks), use fewer data loader workers, or "
     "torch.multiprocessing.set_sharing_strategy('file_system')."},
    {Cause::Hangup, "hangup", "The terminal or session that started the job was closed (SIGHUP).",
     "Start the job in tmux or screen, with `setsid nohup`, or as a batch job."},
    {Cause::UnusedParameters, "unused-parameters",
     "DistributedDataParallel waited for gradients of parameters that the loss does not depend on.",
     "Use every parameter in every step, freeze the unused ones (requires_grad=False), or set "
     "find_unused_parameters=True; TORCH_DISTRIBUTED_DEBUG=DETAIL names them."},
    {Cause::DuplicateGpu, "duplicate-gpu", "Two ranks use the same GPU.",
     "Call torch.cuda.set_device(LOCAL_RANK) before the first collective, start no more ranks per node than it has "
     "GPUs, and check CUDA_VISIBLE_DEVICES.",
     "srun's --gpus-per-task and --gpu-bind hide GPUs from ranks: use --gpus-per-node instead."},
    {Cause::CollectiveMismatch, "collective-mismatch", "Ranks called different collectives at the same time.",
     "Look for a branch that only some ranks take (a skipped batch, logging or saving on rank 0, a different number of "
     "batches); TORCH_DISTRIBUTED_DEBUG=DETAIL finds the first call that differs."},
    {Cause::Rendezvous, "rendezvous",
     "The rendezvous failed: a worker could not connect to it, or not all workers joined.",
     "Check that --master-addr or --rdzv-endpoint is an address of the first node that all nodes can reach (not "
     "localhost), that its port is open, that all nodes were started with the same number of nodes and the same id, "
     "and that the first node is still running."},
    {Cause::Killed, "killed", "A process was killed (SIGKILL); the log does not show by whom.",
     "Most often the kernel did it because host memory ran out: `dmesg -T | grep -i kill` on that host shows this. "
     "Otherwise a user, a container or a scheduler ended it.",
     "`sacct -j JOB --format=JobID,State,ExitCode,MaxRSS` shows what Slurm recorded.",
     "`kubectl describe pod POD` shows whether it was OOMKilled or evicted."},
    {Cause::BraidFailure, "braid-failure", "Braid refused the run, or one of its ranks failed.",
     "Braid's own lines say where and why: the `fix:` below an error, or the root cause line, which docs/failures.md "
     "explains."},
    {Cause::Success, "success", "Nothing failed: the run completed.", "Nothing to do."},
    {Cause::Unknown, "unknown", "The log does not show why the job ended.",
     "Look at the logs of the other ranks, and run again with NCCL_DEBUG=INFO and TORCH_SHOW_CPP_STACKTRACES=1.",
     "`sacct -j JOB --format=JobID,State,ExitCode` shows how it ended.",
     "`kubectl describe pod POD` and `kubectl logs --previous POD` show more."},
}};

constexpr bool are_in_order() {
  for (std::size_t i = 0; i < kTexts.size(); ++i)
    if (kTexts[i].cause != static_cast<Cause>(i)) return false;
  return true;
}
static_assert(are_in_order(), "a row stands at the place of its cause");

}  // namespace

const CauseText& text_of(Cause cause) { return kTexts[static_cast<std::size_t>(cause)]; }

std::string fix_for(Cause cause, const Launchers& launchers) {
  const CauseText& text = text_of(cause);
  std::string fix = text.fix;
  if (launchers.slurm && *text.under_slurm) fix += std::string(" ") + text.under_slurm;
  if (launchers.kubernetes && *text.under_kubernetes) fix += std::string(" ") + text.under_kubernetes;
  return fix;
}

Cause cause_of_signal(int signal) {
  switch (signal) {
    case SIGKILL:
      return Cause::Killed;
    case SIGBUS:
      return Cause::ShmBusError;
    case SIGHUP:
      return Cause::Hangup;
    case SIGSEGV:
    case SIGABRT:
    case SIGILL:
    case SIGFPE:
      return Cause::Segfault;
    default:
      return Cause::Unknown;
  }
}

Cause cause_of(Sign sign) {
  static const std::map<Sign, Cause> kCauses = {
      {Sign::GpuOom, Cause::GpuOom},
      {Sign::HostOom, Cause::HostOom},
      {Sign::CgroupOom, Cause::HostOom},
      {Sign::DiskFull, Cause::DiskFull},
      {Sign::SharedMemory, Cause::ShmBusError},
      {Sign::PortInUse, Cause::PortInUse},
      {Sign::MissingImport, Cause::ImportError},
      {Sign::MegatronShadowed, Cause::MegatronShadowed},
      {Sign::CacheNotShared, Cause::ContainerCacheNotShared},
      {Sign::ImageMissing, Cause::NotLaunched},
      {Sign::WeightsDiffer, Cause::WeightLoadMismatch},
      {Sign::StateDictDiffers, Cause::WeightLoadMismatch},
      {Sign::NotLaunched, Cause::NotLaunched},
      {Sign::ShellError, Cause::NotLaunched},
      {Sign::GpuSpecMissing, Cause::GpuSpecMissing},
      {Sign::BadPartition, Cause::BadPartition},
      {Sign::BadAccount, Cause::BadAccount},
      {Sign::StepConfig, Cause::StepConfig},
      {Sign::UvMissing, Cause::UvMissing},
      {Sign::Hardware, Cause::NodeFailure},
      {Sign::NodeFailure, Cause::NodeFailure},
      {Sign::CudaError, Cause::CudaError},
      {Sign::HubUnreachable, Cause::HubUnreachable},
      {Sign::NanLoss, Cause::NanLoss},
      {Sign::TooManyFiles, Cause::TooManyFiles},
      {Sign::UnusedParameters, Cause::UnusedParameters},
      {Sign::DuplicateGpu, Cause::DuplicateGpu},
      {Sign::CollectiveMismatch, Cause::CollectiveMismatch},
      {Sign::KilledByShell, Cause::Killed},
      {Sign::NativeCrash, Cause::Segfault},
      {Sign::Hangup, Cause::Hangup},
      {Sign::RendezvousFailed, Cause::Rendezvous},
      {Sign::BraidError, Cause::BraidFailure},
      {Sign::WrongArguments, Cause::PythonError},
      {Sign::PythonError, Cause::PythonError},
      {Sign::TimeLimit, Cause::TimeLimit},
      {Sign::Preempted, Cause::Preempted},
      {Sign::JobCancelled, Cause::Cancelled},
      {Sign::StepCancelled, Cause::Cancelled},
      {Sign::Interrupted, Cause::Cancelled},
      {Sign::TerminatedFromOutside, Cause::Cancelled},
      {Sign::NetworkTrouble, Cause::Network},
      {Sign::UniqueIdTimeout, Cause::Rank0BarrierTimeout},
      {Sign::CollectiveTimeout, Cause::NcclTimeout},
      {Sign::StoreTimeout, Cause::NcclTimeout},
  };
  const auto found = kCauses.find(sign);
  return found == kCauses.end() ? Cause::Unknown : found->second;
}

}  // namespace braid
