// What went wrong by itself: programs, containers and shells that do not start.
#include "cluster/doctor/events/signs.h"

namespace braid {
namespace {

constexpr Rule kRules[] = {
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
    {"unable to launch the specified application", Sign::NotLaunched},  // Open MPI, PRRTE
    {"unable to open the hostfile", Sign::NotLaunched},
    {"bad parameter in the hostfile", Sign::NotLaunched},
    {"parse error in the hostfile", Sign::NotLaunched},
    {"included in the current allocation", Sign::NotLaunched, "not included"},
    {"specification asked for more slots", Sign::NotLaunched},
    {"A relative host was specified", Sign::NotLaunched},
    {"were found on the local host to meet", Sign::NotLaunched},
    {"tried to bind a new process, but something", Sign::NotLaunched},
    {"tried to bind memory for a new process", Sign::NotLaunched},
    {"given a negative number of processes", Sign::NotLaunched},
    {"PMIx_Init failed for", Sign::NotLaunched},
    {"It looks like orte_init failed", Sign::NotLaunched},
    {"It looks like \"prte_init()\" failed", Sign::NotLaunched},
    {"not configured with", Sign::NotLaunched, "PMI support"},
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
};

}  // namespace

std::span<const Rule> start_rules() { return kRules; }

}  // namespace braid
