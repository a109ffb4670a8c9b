#include "doctor/events/causes.h"

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
     "Use fewer data loader workers or less prefetching, or a host with more memory; `dmesg -T` on that host tells who "
     "was killed and how large it was.",
     "Ask Slurm for all of the node's memory (--mem=0 or --exclusive); `sacct -j JOB "
     "--format=JobID,State,ExitCode,MaxRSS` says how much was used.",
     "Raise the pod's memory limit (resources.limits.memory); `kubectl describe pod POD` says what it was."},
    {Cause::MoeOom, "moe-oom", "A GPU ran out of memory in a model with experts.",
     "TP does not shrink experts, only EP does: raise the expert parallel size, and with it the number of nodes."},
    {Cause::TimeLimit, "time-limit", "The job was ended at its time limit; nothing failed before.",
     "Ask for more time, or save before the limit and resume from that checkpoint.",
     "Ask with --time; `sbatch --signal=USR1@300` lets a run save in time.",
     "The limit is the job's activeDeadlineSeconds."},
    {Cause::Preempted, "preempted",
     "The nodes were taken away for another job, or the job was put back into the queue.",
     "Resume from the last checkpoint.", "With `sbatch --requeue --open-mode=append` Slurm starts it again by itself."},
    {Cause::NodeFailure, "node-failure", "A node failed; what the other ranks printed is the consequence.",
     "Start again without that node, and tell its administrators; `nvidia-smi -q` and `dmesg -T` there tell of GPUs.",
     "`sbatch --exclude=HOST` leaves it out, `scontrol show node HOST` says what Slurm knows.",
     "`kubectl cordon NODE` keeps new pods away, `kubectl describe node NODE` says what is known."},
    {Cause::Cancelled, "cancelled", "Somebody or something ended the job from outside; nothing failed before.",
     "If it was not you, look who else may end processes there: a scheduler, an administrator, a closed session.",
     "`sacct -j JOB --format=JobID,State,ExitCode,Comment` says who or what cancelled it."},
    {Cause::PortInUse, "port-in-use", "The port of the rendezvous is taken on that host.",
     "Another job, or a left-over process, has it (`ss -ltnp`): choose another --master-port (or "
     "--rdzv-endpoint=HOST:0).",
     "Under Slurm, torchrun needs --ntasks-per-node=1; with 8 tasks per node each starts 8 more, on the same port."},
    {Cause::ImportError, "import-error", "A Python module or library cannot be imported.",
     "Install it in the environment or image that all ranks use, or correct PYTHONPATH. If it is custom model code "
     "that only rank 0 loads when it saves artifacts, let the saving catch ImportError beside OSError."},
    {Cause::PythonError, "python-error", "An exception ended a rank.",
     "Correct what the exception says; the innermost frame is where it happened."},
    {Cause::Rank0BarrierTimeout, "rank0-barrier-timeout",
     "Ranks waited at a barrier for rank 0 to open a communicator, and it did not come.",
     "Look at the end of rank 0's log: saving or exporting that takes long (raise the time-out to 60 min: "
     "init_process_group(timeout=timedelta(minutes=60)) or --distributed-timeout-minutes 60), an exception that was "
     "swallowed, or no connection between the nodes (try others)."},
    {Cause::ArtifactSaveHang, "artifact-save-hang",
     "Rank 0 was saving weights or artifacts while the others waited for it at a barrier, until they timed out.",
     "Raise the time-out to 60 min (--distributed-timeout-minutes 60), and save to a faster file system."},
    {Cause::DataRankCascade, "data-rank-cascade",
     "One rank failed while it loaded or merged its data; the others then waited for it in vain.",
     "Correct or skip that sample; the time-outs of the other ranks need no care of their own."},
    {Cause::NcclTimeout, "nccl-timeout", "Ranks waited in a collective for one that never came to it.",
     "Look at what the silent rank did last (py-spy dump, its log). If it was slow and not stuck, raise the time-out; "
     "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 tell more the next time."},
    {Cause::Network, "network", "The connection between nodes failed.",
     "Check the nodes (`ibstat`, `ping`), try others, set NCCL_SOCKET_IFNAME to the right interface, and run once with "
     "NCCL_DEBUG=INFO.",
     "`sinfo -R` lists nodes in trouble, `sbatch --exclude=HOST` leaves one out."},
    {Cause::ContainerCacheNotShared, "container-cache-not-shared",
     "Data or an image that one node has is not visible on the others.",
     "Set NEMO_HOME (and HF_HOME) to a folder on the shared file system, mounted into every container."},
    {Cause::DiskFull, "disk-full", "A file system is full, or a quota is used up.",
     "Free some space or write elsewhere (`df -h`, `quota`). For uv and pip in a container, whose /root/.cache is "
     "small: UV_CACHE_DIR and PIP_CACHE_DIR on the shared file system."},
    {Cause::ShmBusError, "shm-bus-error", "Shared memory (/dev/shm) ran out: a process died of a bus error.",
     "Make /dev/shm larger (docker --shm-size=16g or --ipc=host), or use fewer data loader workers.", "",
     "In a pod, mount an emptyDir with `medium: Memory` at /dev/shm."},
    {Cause::Fp8RoundtripMismatch, "fp8-roundtrip-mismatch",
     "The weights were compared with an fp8 original after a round trip through bf16: they are expected to differ.",
     "Nothing to repair: compare with a bf16 original, or with a tolerance of atol 1e-1."},
    {Cause::NotLaunched, "not-launched", "The program was not started as a distributed one, or not at all.",
     "Start it with torchrun, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each process.",
     "Under srun: RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID inside each task."},
    {Cause::GpuSpecMissing, "gpu-spec-missing", "Slurm was not told how many GPUs the job wants.",
     "Give --gpus-per-node=8 to both salloc (or sbatch) and srun."},
    {Cause::BadPartition, "bad-partition", "There is no such partition.",
     "`sinfo --summarize` lists what there is; give one of them with -p."},
    {Cause::BadAccount, "bad-account", "The account may not be used, not with this partition, or not for so much.",
     "`sacctmgr -nP show assoc where user=$USER format=account,partition` lists what may, `sacctmgr show qos` how "
     "much."},
    {Cause::StepConfig, "step-config", "srun asks for nodes or resources that the allocation does not have.",
     "Drop -w (--nodelist), and ask for no more nodes, tasks and GPUs than the allocation has."},
    {Cause::UvMissing, "uv-missing", "The container has no uv.",
     "Use an image that has it, or `pip install uv` first."},
    {Cause::MegatronShadowed, "megatron-shadowed",
     "The image's own megatron-core is imported in place of the local checkout.",
     "`pip install --no-deps -e 3rdparty/Megatron-LM`, or `uv sync` before running (SLURM_LOCALID 0 syncs, the others "
     "wait); PYTHONPATH=<workdir>/3rdparty/Megatron-LM helps, too."},
    {Cause::WeightLoadMismatch, "weight-load-mismatch", "A checkpoint's weights do not fit the model.",
     "The model's configuration (hidden size, vocabulary padding, layers, tied embeddings) must be the one the "
     "checkpoint was written with; names that are missing or unexpected show which part differs."},
    {Cause::CudaError, "cuda-error", "A CUDA kernel, library or driver failed.",
     "Run once with CUDA_LAUNCH_BLOCKING=1: it names the call that failed. Illegal accesses and asserts come from "
     "indices out of range (token ids against the vocabulary, labels against the classes) or a broken kernel; \"no "
     "kernel image\" and \"too old\" from a build that does not fit the GPU or its driver (`nvidia-smi`)."},
    {Cause::HubUnreachable, "hub-unreachable", "A model, tokenizer or data set could not be downloaded.",
     "Download it once where there is a network (`huggingface-cli download`), put HF_HOME on a shared file system and "
     "set HF_HUB_OFFLINE=1 for the job. If the hub refused (401, 403, 429): log in, ask for access, or let only one "
     "rank ask."},
    {Cause::NanLoss, "nan-loss", "Training was stopped because the loss or the gradients are not finite.",
     "Resume from a checkpoint before it with a lower learning rate or other data; look at the samples of that step; "
     "train in bf16 instead of fp16; clip gradients."},
    {Cause::Segfault, "segfault", "A rank crashed in native code, and nothing says why.",
     "Run once with PYTHONFAULTHANDLER=1 and `ulimit -c unlimited`: the stack says in which library. Most often "
     "extensions were built for another version of PyTorch, CUDA or NCCL."},
    {Cause::TooManyFiles, "too-many-files", "A process has too many files open.",
     "Raise the limit (`ulimit -n 65536` in the script that starts the ranks), use fewer data loader workers, or "
     "torch.multiprocessing.set_sharing_strategy('file_system')."},
    {Cause::Hangup, "hangup", "The terminal or session that started it was closed (SIGHUP).",
     "Start it in tmux or screen, with `setsid nohup`, or as a batch job."},
    {Cause::UnusedParameters, "unused-parameters",
     "DistributedDataParallel waited for gradients of parameters that took no part in the loss.",
     "Let every parameter take part in every step, freeze those that do not (requires_grad=False), or give "
     "find_unused_parameters=True; TORCH_DISTRIBUTED_DEBUG=DETAIL names them."},
    {Cause::DuplicateGpu, "duplicate-gpu", "Two ranks use the same GPU.",
     "Call torch.cuda.set_device(LOCAL_RANK) before the first collective, start no more ranks per node than it has "
     "GPUs, and look at CUDA_VISIBLE_DEVICES.",
     "srun's --gpus-per-task and --gpu-bind hide GPUs from ranks: give --gpus-per-node instead."},
    {Cause::CollectiveMismatch, "collective-mismatch", "Ranks called different collectives at the same time.",
     "Look for a branch that only some ranks take (a skipped batch, logging or saving on rank 0, another number of "
     "batches); TORCH_DISTRIBUTED_DEBUG=DETAIL finds the first call that differs."},
    {Cause::Rendezvous, "rendezvous", "The workers could not meet: no connection to the rendezvous, or not all came.",
     "Check that --master-addr or --rdzv-endpoint names the first node by an address that all nodes reach (not "
     "localhost), that its port is open, that all nodes were started with the same number of nodes and id, and that "
     "the first one still runs."},
    {Cause::Killed, "killed", "A process was killed (SIGKILL), and nothing says by whom.",
     "Most often that is the kernel for want of host memory: `dmesg -T | grep -i kill` on that host tells. Else "
     "somebody, a container or a scheduler ended it.",
     "`sacct -j JOB --format=JobID,State,ExitCode,MaxRSS` says what Slurm knows.",
     "`kubectl describe pod POD` says whether it was OOMKilled or evicted."},
    {Cause::BraidFailure, "braid-failure", "Braid refused the run, or a rank of it failed.",
     "Braid's own lines say where and why: the `fix:` below an error, or the root cause line; docs/failures.md tells "
     "how to read it."},
    {Cause::Success, "success", "Nothing failed here: the run came to its end.", "Nothing to do."},
    {Cause::Unknown, "unknown", "The log does not say why.",
     "Look at the logs of the other ranks, and run again with NCCL_DEBUG=INFO and TORCH_SHOW_CPP_STACKTRACES=1.",
     "`sacct -j JOB --format=JobID,State,ExitCode` says how Slurm saw it end.",
     "`kubectl describe pod POD` and `kubectl logs --previous POD` say more."},
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
