// How tracebacks and launchers' reports begin, and what keeps a job from being started.
#include "cluster/doctor/events/signs.h"

namespace braid {
namespace {

constexpr Rule kRules[] = {
    // How tracebacks and blocks begin: whatever else such a line says.
    {"Traceback (most recent call last)", Sign::TracebackStart},
    {"During handling of the above exception", Sign::ChainDuring},
    {"above exception was the direct cause", Sign::ChainDuring},
    {"Exception ignored in", Sign::NotFatal},
    {"--- Logging error ---", Sign::NotFatal},
    {"Error in atexit._run_exitfuncs", Sign::NotFatal},
    {"Root Cause (first observed failure)", Sign::FailureBlock},
    {"Failures:", Sign::FailureBlock},
    {"braid: root cause: rank ", Sign::BraidRootCause},
    {"braid: root cause: host", Sign::BraidRootCause, " cannot be reached from host "},
    {"terminated with exception: ", Sign::WatchdogDied},
    {"failed (exitcode: ", Sign::WorkerFailed, "local_rank: "},
    {"  fix:   ", Sign::BraidFix},
    {"  where: ", Sign::BraidFix},

    // Ray guesses at memory and exit codes in it.
    {"A worker died or was killed", Sign::ConnectionLost},
    {"potential root causes", Sign::ConnectionLost},
    {"ommon causes include", Sign::ConnectionLost},

    // A launcher cannot log in to a host.
    {"ssh: Could not resolve hostname", Sign::NotLaunched},
    {"ssh: connect to host", Sign::NotLaunched},
    {"not reachable via ssh", Sign::NotLaunched},  // DeepSpeed
    {"kex_exchange_identification: ", Sign::NotLaunched},
    {"Permission denied (publickey", Sign::NotLaunched},
    {"Permission denied (password", Sign::NotLaunched},
    {"Permission denied (keyboard", Sign::NotLaunched},
    {"Permission denied, please try again", Sign::NotLaunched},
    {"Too many authentication failures", Sign::NotLaunched},
    {"Host key verification failed", Sign::NotLaunched},
    {"SSH with hostname", Sign::NotLaunched, "not successful"},  // Horovod
    {"ssh not successful for host", Sign::NotLaunched},
    {"ssh exited with exit code 255", Sign::NotLaunched},  // pdsh
    {" insecure", Sign::NotLaunched, "pdsh@"},
    {"ssh exited with exit code 126", Sign::NotLaunched},
    {"ssh exited with exit code 127", Sign::NotLaunched},
    {"/ssh] exited with return code", Sign::NotLaunched},  // gcloud

    {"ResourceLimitExceeded", Sign::NotLaunched},  // clouds: fewer machines than asked for
    {"Quota '", Sign::NotLaunched, "xceeded"},

    // Slurm refuses.
    {"Cannot find GPU specification", Sign::GpuSpecMissing},
    {"CPU job setup is not valid", Sign::GpuSpecMissing},
    {"No partition specified or system default", Sign::BadPartition},
    {"Required partition not available", Sign::BadPartition},
    {"Invalid partition", Sign::BadPartition, nullptr, "Invalid partition name"},
    {"invalid partition specified", Sign::BadPartition},
    {"Invalid partition name specified", Sign::BadPartition},
    {"Invalid account or account/partition", Sign::BadAccount},
    {"violates accounting/QOS policy", Sign::BadAccount},
    {"already completing or completed", Sign::Remark},  // the job was over before
    {"Requested node configuration is not available", Sign::StepConfig},
    {"Unable to create step for job", Sign::StepConfig, nullptr, "Invalid account"},
    {"QOSMax", Sign::BadAccount, "rror: "},  // srun: error: ... Reason: QOSMaxGRESPerUser
    {"AssocGrp", Sign::BadAccount, "rror: "},
    {"AssocMax", Sign::BadAccount, "rror: "},
    {"Access/permission denied", Sign::BadAccount},
    {"Invalid wckey specification", Sign::BadAccount},
    {"Invalid qos specification", Sign::BadAccount},
    {"not permitted to use this partition", Sign::BadAccount},
    {"Required node not available", Sign::StepConfig, "rror"},
    {"More processors requested than permitted", Sign::StepConfig},
    {"Invalid Trackable RESource", Sign::StepConfig},
    {"Insufficient GRES available", Sign::StepConfig},
    {"Requested nodes are busy", Sign::StepConfig},
    {"Invalid reservation", Sign::StepConfig},
    {"Requested reservation", Sign::StepConfig},
    {"Job dependency problem", Sign::StepConfig},
    {"Invalid constraint specification", Sign::StepConfig},
    {"Job request does not match any supported policy", Sign::StepConfig},
    {"Unable to layout tasks on given cpus", Sign::StepConfig},
    {"Invalid generic resource", Sign::StepConfig},
    {"Invalid GRES specification", Sign::StepConfig},
    {"srun: fatal: ", Sign::NotLaunched},
    {"cannot find mpi plugin", Sign::NotLaunched},
    {": unrecognized option '", Sign::NotLaunched},
    {": invalid option -- ", Sign::NotLaunched},
    {"Error: unknown option", Sign::NotLaunched, "mpi"},
    {"Invalid feature specification", Sign::StepConfig},
    {"Invalid node name specified", Sign::StepConfig},
    {"Memory specification can not be satisfied", Sign::StepConfig},
    {"Node count specification invalid", Sign::StepConfig},
    {"partition configuration not available", Sign::StepConfig},
    {"Memory required by task is not available", Sign::StepConfig},
    {"srun: error: timeout waiting for task launch", Sign::NodeFailure},
    {"Unable to confirm allocation for job", Sign::NotLaunched},
    {"rotocol authentication error", Sign::NotLaunched},
    {"unge decode failed", Sign::NotLaunched},
    {"unge encode failed", Sign::NotLaunched},
    {"has authentication error", Sign::NotLaunched},
    {"failed to fetch config", Sign::NotLaunched, "config_source: "},  // Slurm without its files
    {"Could not establish a configuration source", Sign::NotLaunched},
    {"TaskProlog failed", Sign::NotLaunched},
    {"PrologSlurmctld is still running", Sign::NotLaunched},
    {"requested reservation", Sign::StepConfig, "denied"},
    {"Requested nodes not in this partition", Sign::StepConfig},
    {"Task count specification invalid", Sign::StepConfig},
    {"CPU count specification invalid", Sign::StepConfig},
    {"Task distribution specification invalid", Sign::StepConfig},
    {"Invalid license specification", Sign::StepConfig},
    {"Licenses currently unavailable", Sign::StepConfig},
    {"breached requested QOS usage threshold", Sign::BadAccount},
    {"MPI plugin's pre-launch setup failed", Sign::NotLaunched},
    {"can't load PMI", Sign::NotLaunched},
    {"Invalid MPI type '", Sign::NotLaunched},
    {"sbatch: error: Unable to open file", Sign::NotLaunched},
    {"script contains DOS line breaks", Sign::NotLaunched},
    {"not enough slots available", Sign::NotLaunched},  // mpirun
    {"already filled", Sign::NotLaunched, "allocated for this job"},
    {"no allocated resources for the application", Sign::NotLaunched},
    {"would result in binding more", Sign::NotLaunched},
    {"requested more processes than the ppr", Sign::NotLaunched},
    {"job requests unknown queue", Sign::BadPartition},  // Grid Engine
    {"no suitable queues", Sign::StepConfig},
    {"Unable to run job: ", Sign::StepConfig, nullptr, "rejected: "},
    {"Job exceeds queue", Sign::StepConfig},  // PBS
    {"Job violates queue", Sign::StepConfig},
    {"rejected by all possible destinations", Sign::StepConfig},
    {"Illegal attribute or resource value", Sign::StepConfig},
    {"Bad resource requirement", Sign::StepConfig},                    // LSF
    {"Not enough resources available to schedule", Sign::StepConfig},  // jsrun
    {"JSM server is not responding", Sign::NodeFailure},
    {"Error initializing RM connection", Sign::NotLaunched},
    {"unsatisfiable request", Sign::StepConfig},  // Flux
    {"job.exception type=exec", Sign::NotLaunched, "start failed"},
    {"Unknown queue", Sign::BadPartition},  // PBS
    {"No such queue", Sign::BadPartition},  // LSF
    {"qsub: ", Sign::BadAccount, "ccount"},
    {"qsub: Unauthorized Request", Sign::BadAccount},
    {"cannot use the queue", Sign::BadAccount},
    {"Job not submitted", Sign::StepConfig},          // LSF, for other reasons
    {"job rejected: ", Sign::BadAccount, "project"},  // Grid Engine
};

}  // namespace

std::span<const Rule> launcher_rules() { return kRules; }

}  // namespace braid
