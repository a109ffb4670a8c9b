// What went wrong by itself: files, programs, arguments.
#include "doctor/signs.h"

namespace braid {
namespace {

constexpr Rule kRules[] = {
    // Files and programs.
    {"No space left on device", Sign::DiskFull},
    {"Disk quota exceeded", Sign::DiskFull},
    {"[Errno 28]", Sign::DiskFull},
    {"[Errno 122]", Sign::DiskFull},
    {"quota exceeded", Sign::DiskFull, nullptr, "project"},
    {"Quota exceeded", Sign::DiskFull, "isk"},
    {"Not enough disk space", Sign::DiskFull},
    {"not enough disk space", Sign::DiskFull},
    {"Not enough free disk space", Sign::DiskFull},
    {"out of disk space", Sign::DiskFull},
    {"Out of disk space", Sign::DiskFull},
    {"OutOfDiskError", Sign::DiskFull},                                          // Ray
    {"Disk full while running", Sign::DiskFull},                                 // Azure
    {"enforce fail at inline_container.cc", Sign::DiskFull, nullptr, "Reader"},  // torch.save cannot write
    {"file write failed", Sign::DiskFull},
    {"ENOSPC", Sign::DiskFull},
    {"EDQUOT", Sign::DiskFull},
    {"File too large", Sign::DiskFull, "[Errno 27]"},
    {" requested and ", Sign::DiskFull, " written"},  // NumPy
    {"errno = 28", Sign::DiskFull},
    {"PytorchStreamWriter failed writing", Sign::DiskFull},
    {"basic_ios::clear: iostream error", Sign::DiskFull},  // torch.save
    {"uv: command not found", Sign::UvMissing},
    {"uv: not found", Sign::UvMissing},
    {": uv: No such file or directory", Sign::UvMissing},
    {"'uv': No such file", Sign::UvMissing},
    {"\"uv\": executable file not found", Sign::UvMissing},
    {"EADDRINUSE", Sign::PortInUse},
    {"ddress already in use", Sign::PortInUse},
    {"but another process is utilizing it", Sign::PortInUse},  // Accelerate
    {"server socket has failed to listen on any", Sign::PortInUse, nullptr, "ermission"},
    {"[Errno 98]", Sign::PortInUse},
    {"errno: 98", Sign::PortInUse},
    {"[Errno 48]", Sign::PortInUse},
    {"WinError 10048", Sign::PortInUse},
    {"ort is already allocated", Sign::PortInUse},  // Docker
    {"ort already in use", Sign::PortInUse},
    {"address already bound", Sign::PortInUse},
    {"have been bound already", Sign::PortInUse},  // Ascend
    {"ailed to bind to ", Sign::PortInUse, nullptr, "ermission"},
    {"No address added out of total", Sign::PortInUse},  // gRPC
    {"Could not start gRPC server", Sign::PortInUse},
    {"is already in use", Sign::PortInUse, "ort ", "nvidia"},
    {"No module named 'megatron.core.", Sign::MegatronShadowed},
    {"from 'megatron.core", Sign::MegatronShadowed, "cannot import name"},
    {"ModuleNotFoundError", Sign::MissingImport},
    {"Error while finding module specification", Sign::MissingImport},
    {"ImportError", Sign::MissingImport},
    {"error while loading shared libraries", Sign::MissingImport},
    {"cannot open shared object file", Sign::MissingImport, "Error"},
    {": No module named ", Sign::MissingImport, "python"},  // -m
    {"symbol lookup error", Sign::MissingImport},
    {"GLIBCXX_", Sign::MissingImport, "not found"},
    {"GLIBC_", Sign::MissingImport, "not found"},
    {"CXXABI_", Sign::MissingImport, "not found"},
    {"Could not load library lib", Sign::MissingImport},
    {"Unable to load any of {lib", Sign::MissingImport},
    {"PackageNotFoundError", Sign::MissingImport},
    {"DistributionNotFound", Sign::MissingImport},
    {"VersionConflict: ", Sign::MissingImport},
    {"Error loading", Sign::MissingImport, ".dll"},
    {"Failed to import transformers", Sign::MissingImport},
    {"partially initialized module", Sign::MissingImport},
    {"numpy.dtype size changed", Sign::MissingImport},
    {"Numpy is not available", Sign::MissingImport},
    {"_ARRAY_API not found", Sign::MissingImport},
    {"requires the following packages that were not found", Sign::MissingImport},
    {"Could not find module", Sign::MissingImport, "Error"},
    {"undefined symbol: ", Sign::MissingImport},
    {"in static TLS block", Sign::MissingImport},
    {"Inconsistency detected by ld.so", Sign::MissingImport},
    {"No matching distribution found for", Sign::MissingImport},
    {"ailed building wheel for", Sign::MissingImport},
    {"ould not build wheels for", Sign::MissingImport},
    {"Ninja is required to load", Sign::MissingImport},
    {"Unable to load NCCL library", Sign::MissingImport},  // JAX
    {"'NoneType' object is not an iterator", Sign::CacheNotShared},
    {"Weight mismatch detected", Sign::WeightsDiffer},
    {"size mismatch for ", Sign::StateDictDiffers},
    {"in loading state_dict for", Sign::StateDictDiffers},
    {"key(s) in state_dict", Sign::StateDictDiffers},
    {"ound trip mismatch", Sign::WeightsDiffer},
    {"ound-trip mismatch", Sign::WeightsDiffer},
    {"oundtrip mismatch", Sign::WeightsDiffer},
    {"Size mismatch between saved", Sign::StateDictDiffers},              // torch.distributed.checkpoint
    {"is not compatible with the stored shape", Sign::StateDictDiffers},  // Orbax
    {"tree structures do not match", Sign::StateDictDiffers, "restore"},
    {"Assign requires shapes of both tensors to match", Sign::StateDictDiffers},  // TensorFlow
    {"mismatch between the current graph and the graph", Sign::StateDictDiffers},
    {"Tensor name \"", Sign::StateDictDiffers, "not found in checkpoint"},
    {"not found in checkpoint", Sign::StateDictDiffers, nullptr, "director"},
    {"ignore_mismatched_sizes", Sign::StateDictDiffers, "Error"},
    {"loaded state dict contains a parameter group", Sign::StateDictDiffers},
    {"loaded state dict has a different number of", Sign::StateDictDiffers},
    {"does not match checkpoint", Sign::StateDictDiffers, "hape"},
    {"shape mismatch", Sign::StateDictDiffers, "checkpoint"},
    {"Shape mismatch", Sign::StateDictDiffers, "checkpoint"},
    {"shapes mismatch", Sign::StateDictDiffers, "oad"},
    {"Unexpected keys in state dict", Sign::StateDictDiffers},
    {"Missing keys in state dict", Sign::StateDictDiffers},
    {"checkpoint is incompatible", Sign::StateDictDiffers},
    {"value from checkpoint", Sign::StateDictDiffers, "argument value"},  // Megatron
    {"missing in the checkpoint", Sign::StateDictDiffers},
    {"Loading a checkpoint for MP=", Sign::StateDictDiffers},
    {"checkpoint being loaded used a DP world size", Sign::StateDictDiffers},  // DeepSpeed
    {"ScopeParamShapeError", Sign::StateDictDiffers},                          // Flax
    {"has a different shape than", Sign::StateDictDiffers, "checkpoint"},
    {"axes to be a tuple of", Sign::StateDictDiffers, "hape mismatch"},
    {"The shape of parameter", Sign::StateDictDiffers, "not match"},  // Paddle
    {"Missing key in checkpoint", Sign::StateDictDiffers},
    {"Trying to set a tensor of shape", Sign::StateDictDiffers},
    {"hape mismatch for loaded", Sign::StateDictDiffers},
    {"global shape metadata", Sign::StateDictDiffers},
    {"launched with torchrun", Sign::NotLaunched, nullptr, "not launched with torchrun, "},
    {"launched using torchrun", Sign::NotLaunched},
    {"launched via torchrun", Sign::NotLaunched},
    {"expected, but not set", Sign::NotLaunched, "environment variable"},
    {"KeyError: 'WORLD_SIZE'", Sign::NotLaunched},
    {"KeyError: 'RANK'", Sign::NotLaunched},
    {"KeyError: 'LOCAL_RANK'", Sign::NotLaunched},
    {"KeyError: 'MASTER_", Sign::NotLaunched},
    {"execve(): ", Sign::NotLaunched},
    {"/usr/bin/env: ", Sign::NotLaunched, "No such file"},
    {"execvp error", Sign::NotLaunched},  // MPICH
    {": exec format error", Sign::NotLaunched},
    {": Exec format error", Sign::NotLaunched},
    {"No such file or directory: ", Sign::ImageMissing, ".sqsh"},
    {"could not open image", Sign::ImageMissing, "FATAL"},
    {"a container with name", Sign::ImageMissing, "does not exist"},
    {"Unable to handle ", Sign::ImageMissing, " uri: "},  // Apptainer, Singularity
    {"failed to open image", Sign::ImageMissing, "FATAL"},
    {"while getting image info", Sign::ImageMissing},
    {"InvalidImageName", Sign::NotLaunched},
    {"CreateContainerConfigError", Sign::NotLaunched},
    {"CreateContainerError", Sign::NotLaunched},
    {"RunContainerError", Sign::NotLaunched},
    {"StartError", Sign::NotLaunched},
    {"ContainerCannotRun", Sign::NotLaunched},
    {"FailedMount", Sign::NotLaunched},
    {"OCI runtime create failed", Sign::NotLaunched},
    {"OCI runtime exec failed", Sign::NotLaunched},
    {"FATAL:   ", Sign::NotLaunched, nullptr, "ERROR:"},  // Apptainer
    {"nvidia-container-cli: ", Sign::NotLaunched, "rror"},
    {"exec /", Sign::NotLaunched, ": no such file or directory"},
    {"Unable to locate a modulefile", Sign::NotLaunched},
    {"CondaError: ", Sign::NotLaunched},
    {"CommandNotFoundError: ", Sign::NotLaunched},  // conda
    {"zsh: no such file or directory: ./", Sign::NotLaunched},
    {"zsh: permission denied: ", Sign::NotLaunched},
    {"can't find '__main__' module in", Sign::NotLaunched},
    {"See 'docker ", Sign::NotLaunched, "--help"},
    {"docker: permission denied while trying", Sign::NotLaunched},
    {"the container name \"", Sign::NotLaunched, "already in use"},  // Podman
    {"You must be logged in to the server", Sign::NotLaunched},      // kubectl
    {"EnvironmentLocationNotFound", Sign::NotLaunched},              // conda
    {"EnvironmentNameNotFound", Sign::NotLaunched},
    {"Lmod has detected the following error", Sign::NotLaunched},
    {"FailedCreatePodSandBox", Sign::NotLaunched},
    {"FailedAttachVolume", Sign::NotLaunched},
    {"ErrImageNeverPull", Sign::NotLaunched},
    {"FailedScheduling", Sign::NotLaunched},
    {"exceeded quota: ", Sign::NotLaunched, "forbidden"},
    {"Unschedulable", Sign::NotLaunched},
    {"in gang unschedulable", Sign::NotLaunched},  // Volcano
    {"CapacityError", Sign::NotLaunched},          // SageMaker
    {"nsufficient capacity", Sign::NotLaunched},
    {"InsufficientInstanceCapacity", Sign::NotLaunched},
    {"ZONE_RESOURCE_POOL_EXHAUSTED", Sign::NotLaunched},
    {"via the \"execve\" system call", Sign::NotLaunched},  // mpirun
    {"A hostfile was provided that contains", Sign::NotLaunched},
    {"Error: configmap ", Sign::NotLaunched},  // Kubernetes
    {"Error: secret ", Sign::NotLaunched},
    {"Error from server (", Sign::NotLaunched},
    {"no matches for kind ", Sign::NotLaunched},
    {"unable to launch the specified application", Sign::NotLaunched},
    {"unable to start the specified application", Sign::NotLaunched},
    {"Batch script is empty", Sign::NotLaunched},
    {"This does not look like a batch script", Sign::NotLaunched},
    {"nodes are available: ", Sign::NotLaunched, "nsufficient"},
    {"RuntimeEnvSetupError", Sign::NotLaunched},                     // Ray
    {"unable to find the specified executable", Sign::NotLaunched},  // mpirun
    {"detected an attempt to run as root", Sign::NotLaunched},
    {"appears to have been direct launched using", Sign::NotLaunched},
    {"An ORTE daemon has unexpectedly failed", Sign::NotLaunched},
    {"Application launch failed", Sign::NotLaunched},  // srun
    {"Job credential expired", Sign::NotLaunched},
    {"container_g_join failed", Sign::NotLaunched},
    {"container_p_join", Sign::NotLaunched, "failed"},
    {"Failed to invoke spank plugin stack", Sign::NotLaunched},
    {"no hosts to run on", Sign::NotLaunched},
    {"BarrierJobSlotsNumberCheckFailed", Sign::NotLaunched},  // Spark
    {"requires more slots than the total number", Sign::NotLaunched},
    {"No hostfile", Sign::NotLaunched, "Error"},
    {"Task prolog failed", Sign::NotLaunched},
    {"task_prolog failed", Sign::NotLaunched},
    {"could not find either executable", Sign::NotLaunched},
    {"No executable was specified", Sign::NotLaunched},
    {"mpiexec_", Sign::NotLaunched, "unable to parse user arguments"},
    {"unable to run bstrap_proxy", Sign::NotLaunched},  // Intel MPI
    {"error setting up the bootstrap proxies", Sign::NotLaunched},
    {"ImagePullBackOff", Sign::NotLaunched},
    {"ErrImagePull", Sign::NotLaunched},
    {"CannotPullContainer", Sign::NotLaunched},  // ECS
    {"CannotStartContainer", Sign::NotLaunched},
    {"ResourceInitializationError", Sign::NotLaunched},
    {"Cannot connect to the Docker daemon", Sign::NotLaunched},
    {"initializing source docker://", Sign::NotLaunched},  // Podman
    {"enroot-", Sign::NotLaunched, ": failed to "},
    {"[ERROR] Command not found: ", Sign::NotLaunched},  // Enroot
    {"Failed to execute '", Sign::NotLaunched, "condor"},
    {"No slot '", Sign::NotLaunched, "specified on host"},        // DeepSpeed
    {"No available node types can fulfill", Sign::NotLaunched},   // Ray
    {"Resources are insufficient in region", Sign::NotLaunched},  // Vertex AI
    {"docker: Error response from daemon", Sign::NotLaunched},
    {"executable file not found", Sign::NotLaunched},
    {"was unable to launch the specified", Sign::NotLaunched},
    {"unable to reliably start one or more daemons", Sign::NotLaunched},
    {": command not found", Sign::ShellError, ": line "},
    {": command not found", Sign::NotLaunched},
    {": Command not found.", Sign::NotLaunched},   // csh
    {": Undefined variable.", Sign::NotLaunched},  // csh
    {"fish: Unknown command", Sign::NotLaunched},
    {"is not recognized as an internal or external", Sign::NotLaunched},  // Windows
    {": unbound variable", Sign::ShellError, ": line "},
    {": parameter null or not set", Sign::ShellError, ": line "},
    {": syntax error", Sign::ShellError, ": line "},
    {": cannot execute", Sign::ShellError, ": line "},
    {": No such file or directory", Sign::ShellError, ": line "},
    {": Permission denied", Sign::ShellError, ": line "},
    {": not found", Sign::ShellError, ": line "},
    {": not found", Sign::ShellError, "sh: "},
    {": not found", Sign::NotLaunched, ": exec: "},
    {": No such file or directory", Sign::ShellError, "bash: "},
    {": Permission denied", Sign::ShellError, "bash: "},
    {"can't open file ", Sign::NotLaunched, "[Errno 2]"},
    {"pyxis: ", Sign::NotLaunched, "failed"},
    {": error: unrecognized arguments", Sign::WrongArguments},  // argparse
    {": error: the following arguments are required", Sign::WrongArguments},
    {": error: one of the arguments", Sign::WrongArguments},
    {": error: ambiguous option", Sign::WrongArguments},
    {": error: invalid choice", Sign::WrongArguments},
    {": error: argument ", Sign::WrongArguments},
    {": error: too few arguments", Sign::WrongArguments},
    {": error: no such option", Sign::WrongArguments},  // optparse
    {"error: Unrecognized options", Sign::WrongArguments},
    {"Unrecognized or misplaced option", Sign::WrongArguments},  // tyro
    {" Parsing error ", Sign::WrongArguments, "\xe2\x94\x80"},
    {"Could not consume arg: ", Sign::WrongArguments},  // Fire
    {"Error: No such option", Sign::WrongArguments},    // click
    {"Error: Missing option", Sign::WrongArguments},
    {"Error: Missing argument", Sign::WrongArguments},
    {"Error: Invalid value for", Sign::WrongArguments},
    {"Error: Got unexpected extra argument", Sign::WrongArguments},
    {"FATAL Flags parsing error", Sign::WrongArguments},  // absl
    {"is not in struct", Sign::WrongArguments, "Key '"},  // Hydra
    {"Segmentation fault", Sign::NativeCrash},
    {"*** SIGSEGV", Sign::NativeCrash},  // glog
    {"*** SIGABRT", Sign::NativeCrash},
    {"*** SIGFPE", Sign::NativeCrash},
    {"*** SIGILL", Sign::NativeCrash},
    {"*** SIGBUS", Sign::SharedMemory},
    {"signal SIGSEGV", Sign::NativeCrash},
    {"SIGSEGV: ", Sign::NativeCrash},
    {"(SIGSEGV) received", Sign::NativeCrash},
    {"Aborted at ", Sign::NativeCrash, "unix time"},
    {"pure virtual method called", Sign::NativeCrash},
    {"Process abort signal` is detected", Sign::NativeCrash},  // Paddle
    {"ccess violation", Sign::NativeCrash, "rror"},
    {"Win32 exception 0x", Sign::NativeCrash},
    {"Execution halted", Sign::PythonError},  // R
    {"corrupted double-linked list", Sign::NativeCrash},
    {"realloc(): invalid", Sign::NativeCrash},
    {"trap invalid opcode", Sign::NativeCrash},
    {"general protection fault", Sign::NativeCrash},
    {"Signal: Aborted", Sign::NativeCrash},
    {"terminate called after throwing", Sign::NativeCrash},
    {"Aborted (core dumped)", Sign::NativeCrash},
    {"Aborted                 ", Sign::NativeCrash},  // as a shell tells it
    {"Illegal instruction", Sign::NativeCrash},
    {"loating point exception", Sign::NativeCrash},
    {"double free or corruption", Sign::NativeCrash},
    {"free(): invalid ", Sign::NativeCrash},
    {"malloc(): ", Sign::NativeCrash},
    {"corrupted size vs. prev_size", Sign::NativeCrash},
    {"munmap_chunk(): invalid", Sign::NativeCrash},
    {"Fatal Python error: ", Sign::NativeCrash},
    {"stack smashing detected", Sign::NativeCrash},
    {"buffer overflow detected", Sign::NativeCrash},
    {"malloc_consolidate(): ", Sign::NativeCrash},
    {"sysmalloc: Assertion", Sign::NativeCrash},
    {"tcache_thread_shutdown(): ", Sign::NativeCrash},
    {"free(): double free", Sign::NativeCrash},
    {"free(): corrupted", Sign::NativeCrash},
    {"invalid fastbin entry", Sign::NativeCrash},
    {"Fatal glibc error", Sign::NativeCrash},
    {"terminate called without an active", Sign::NativeCrash},
    {"Check failed: ", Sign::NativeCrash},  // glog
    {"terminate called recursively", Sign::NativeCrash},
    {"libc++abi: terminating", Sign::NativeCrash},
    {"detected by the Java Runtime Environment", Sign::NativeCrash},
    {"KeyboardInterrupt", Sign::Interrupted},
    {"NCCL error", Sign::PythonError, "invalid argument"},  // the program's own mistakes
    {"NCCL error", Sign::PythonError, "invalid usage"},
    {"NCCL Error 4: ", Sign::PythonError},
    {"NCCL Error 5: ", Sign::PythonError},
    {"ncclCommInitRank failed: invalid", Sign::PythonError},
    {"ncclSystemError", Sign::NetworkTrouble},  // where it does not say what it was
    {"unhandled system error", Sign::NetworkTrouble},
    {"ncclInternalError", Sign::ConnectionLost},
    {"ncclInvalidUsage", Sign::ConnectionLost},
    {"NCCL Error ", Sign::ConnectionLost},
    {"DistBackendError", Sign::ConnectionLost},
    {"NCCL error in: ", Sign::ConnectionLost},
    {"DistNetworkError", Sign::NetworkTrouble},
};

}  // namespace

std::span<const Rule> error_rules() { return kRules; }

}  // namespace braid
