// What single lines of a log mean: a table of message formats, each with a literal to find it by.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

enum class Sign {
  // Causes: something that went wrong by itself.
  GpuOom,
  HostOom,
  DiskFull,
  SharedMemory,
  PortInUse,
  MissingImport,
  MegatronShadowed,
  CacheNotShared,
  ImageMissing,      // of a container
  WeightsDiffer,     // a round trip's comparison
  StateDictDiffers,  // names or shapes
  NotLaunched,
  ShellError,  // a shell script did not get as far as the program, or did not find it
  GpuSpecMissing,
  BadPartition,
  BadAccount,
  StepConfig,
  UvMissing,
  Hardware,
  CudaError,  // of the driver, a kernel or a CUDA library
  HubUnreachable,
  NanLoss,
  TooManyFiles,
  UnusedParameters,
  DuplicateGpu,
  CollectiveMismatch,  // a rank's check tells of it
  BraidError,          // what the program says before it ends with a fix
  WrongArguments,      // of the command line
  PythonError,
  KilledByShell,  // a shell tells that its process got SIGKILL
  NativeCrash,
  // Ends from outside.
  TimeLimit,
  Preempted,
  NodeFailure,
  JobCancelled,
  StepCancelled,  // srun does this also to the rest of a step that failed
  CgroupOom,
  Interrupted,
  Hangup,
  TerminatedFromOutside,  // torchrun's own death signal
  // Consequences: others that waited for a rank, or were stopped after it.
  CollectiveTimeout,
  UniqueIdTimeout,  // waits for rank 0 to begin a communicator
  StoreTimeout,
  RendezvousFailed,
  ConnectionLost,
  NetworkTrouble,  // a message about the network itself
  Stopped,
  // Who failed, as launchers tell it.
  BraidRootCause,
  WorkerFailed,  // torchrun: "failed (exitcode: 1) local_rank: 0"
  TaskExit,      // srun
  ProcessEnd,    // others, see process_ends.h
  SpawnedProcess,
  WatchdogDied,  // and says of what
  MonitoredBarrier,
  // Context.
  TracebackStart,
  AbsentRank,  // that somebody waited for in vain
  RankBlock,   // the lines of one rank begin or end
  ChainDuring,
  NotFatal,  // a traceback follows that ended nothing
  FailureBlock,
  Progress,
  EndedWell,
  SaysDone,  // one process says that training is done
  ScriptEndedWell,
  RunStarts,
  JobLimit,  // how long the job may run
  JobExit,
  SaveArtifacts,
  Saving,  // a checkpoint
  Saved,
  Experts,
  Fp8,
  DifferingRow,  // of a round trip's table
  WorldSize,
  LastEnqueued,
  BraidSays,
  BraidFix,
  Remark,  // says "error" in some way; the best there is when all else is missing
};

enum class Role { Cause, Outside, Consequence, Launcher, Context };
Role role_of(Sign sign);

struct Rule {
  const char* anchor;  // at least AnchorScan::kShortest bytes, for speed
  Sign sign;
  const char* also = nullptr;    // must stand in the line, too
  const char* unless = nullptr;  // must not
};

// In order of precedence: where several fit one line, the first is meant.
const std::vector<Rule>& rules();

// Its parts, in this order.
std::span<const Rule> launcher_rules();  // how reports begin, what keeps a job from being started
std::span<const Rule> ending_rules();    // how schedulers and signals end a job
std::span<const Rule> process_rules();   // how processes end
std::span<const Rule> mismatch_rules();  // ranks that do not do the same
std::span<const Rule> hub_rules();       // downloads
std::span<const Rule> waiting_rules();   // time-outs and lost peers
std::span<const Rule> device_rules();    // causes: memory, devices
std::span<const Rule> number_rules();    // causes: what is not finite
std::span<const Rule> error_rules();     // causes: files, modules, weights
std::span<const Rule> start_rules();     // causes: what does not start
std::span<const Rule> crash_rules();     // causes: arguments, crashes
std::span<const Rule> run_rules();       // what a run says of itself
std::span<const Rule> progress_rules();  // steps of a training, in all the styles
std::span<const Rule> remark_rules();    // what is left when all else is missing

// The meaning of a text that is known to be a message, say the reason in a root cause.
std::optional<Sign> sign_in(std::string_view text);

bool fits(const Rule& rule, std::string_view text);  // beyond its anchor

}  // namespace braid
