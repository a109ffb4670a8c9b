// How schedulers and signals end a job.
#include "cluster/doctor/events/signs.h"

namespace braid {
namespace {

constexpr Rule kRules[] = {
    {"Failed to send MESSAGE_TASK_EXIT", Sign::Stopped},  // Slurm, when srun is gone

    // Schedulers end a job: Slurm, LSF, PBS, Kubernetes.
    {"State: TIMEOUT", Sign::TimeLimit},  // seff
    {"State: OUT_OF_ME", Sign::CgroupOom},
    {"State: CANCELLED", Sign::JobCancelled},
    {"State: NODE_FAIL", Sign::NodeFailure},
    {"DUE TO TIME LIMIT", Sign::TimeLimit},
    {"TERM_RUNLIMIT", Sign::TimeLimit},
    {"TERM_CPULIMIT", Sign::TimeLimit},
    {"TERM_DEADLINE", Sign::TimeLimit},
    {"TERM_WINDOW", Sign::TimeLimit},
    {"PBS: job killed: walltime", Sign::TimeLimit},
    {"PBS: job killed: cput", Sign::TimeLimit},
    {"APPLICATION TIMED OUT", Sign::TimeLimit},              // MPICH
    {"job.exception type=timeout", Sign::TimeLimit},         // Flux
    {"allowed execute duration", Sign::TimeLimit, "xceed"},  // HTCondor
    {"allowed job duration", Sign::TimeLimit, "xceed"},
    {"hard limit \"h_rt\"", Sign::TimeLimit, "xceed"},                   // Grid Engine
    {"timeout: sending signal", Sign::TimeLimit},                        // coreutils
    {"FunctionTimeoutError", Sign::TimeLimit},                           // Modal
    {"ttempt duration exceeded timeout", Sign::TimeLimit},               // AWS Batch
    {"runs over the maximum runtime", Sign::TimeLimit},                  // Google Batch
    {"execution took longer than", Sign::TimeLimit},                     // GitLab
    {"time limit for job execution has been reached", Sign::TimeLimit},  // mpirun
    {"this job is timed-out", Sign::TimeLimit},                          // submitit
    {"job is timing out", Sign::TimeLimit},
    {"MaxRuntimeExceeded", Sign::TimeLimit},  // SageMaker
    {"MaxWaitTimeExceeded", Sign::TimeLimit},
    {"exceeded its time limit", Sign::TimeLimit},
    {"ime limit exceeded", Sign::TimeLimit},
    {"time limit reached", Sign::TimeLimit},
    {"walltime limit", Sign::TimeLimit, "xceed"},
    {"exceeded walltime", Sign::TimeLimit},
    {"exceeded the time limit", Sign::TimeLimit},
    {"xceeded the maximum ", Sign::TimeLimit, "timeout"},
    {"xceeded the maximum ", Sign::TimeLimit, "duration"},
    {"exceeded wall-clock time", Sign::TimeLimit},      // HTCondor
    {"exceeded hard wallclock time", Sign::TimeLimit},  // Grid Engine
    {"exceeded the maximum execution time", Sign::TimeLimit},
    {"DeadlineExceeded", Sign::TimeLimit, nullptr, "Error"},
    {"specified deadline", Sign::TimeLimit, "longer than"},
    {"DUE TO TIME_LIMIT", Sign::TimeLimit},
    {" launch failed: ", Sign::NotLaunched, "srun: error: task"},
    {"launch failed: Plugin initialization failed", Sign::NotLaunched},
    {"Node failure on ", Sign::NodeFailure},
    {"Prolog failed", Sign::NodeFailure, nullptr, "Task"},
    {"Prolog hung on node", Sign::NodeFailure},
    {"are still not ready", Sign::NodeFailure, "Nodes "},
    {"io error with slurmstepd on node", Sign::NodeFailure},
    {"io error and missing step on node", Sign::NodeFailure},
    {"JobState=BOOT_FAIL", Sign::NodeFailure},
    {"lost contact with job shell", Sign::NodeFailure},  // Flux
    {"job.exception type=node-failure", Sign::NodeFailure},
    {"Job reconnection failed", Sign::NodeFailure},  // HTCondor
    {"VM reporting timeout", Sign::NodeFailure},     // Google Batch
    {"VM rebooted during", Sign::NodeFailure},
    {"STEPD TERMINATED ON ", Sign::NodeFailure},
    {"Task launch for ", Sign::NodeFailure, " failed on node "},
    {"NodeNotReady", Sign::NodeFailure},
    {"node.kubernetes.io/unreachable", Sign::NodeFailure, "vict"},
    {"node.kubernetes.io/not-ready", Sign::NodeFailure, "vict"},
    {"its node has died", Sign::NodeFailure, nullptr, "preempted"},  // Ray
    {"daemon on node", Sign::NodeFailure, "died"},
    {"NODE FAILURE", Sign::NodeFailure},
    {"UnexpectedAdmissionError", Sign::NodeFailure},
    {"Node is not ready", Sign::NodeFailure},
    {"NodeLost", Sign::NodeFailure},
    {"requested job terminate", Sign::NodeFailure, "PBS"},
    {"NodeStatusUnknown", Sign::NodeFailure},
    {"stopped posting node status", Sign::NodeFailure},
    {"has lost communication with", Sign::ConnectionLost},  // mpirun, prterun
    {"heartbeat timeout", Sign::NodeFailure, "task:"},      // JAX
    {"stopped sending heartbeats", Sign::NodeFailure},
    {"missed too many heartbeats", Sign::NodeFailure},  // Ray
    {"NodeDiedError", Sign::NodeFailure},
    {"detected missing heartbeats", Sign::NodeFailure},
    {"another task died", Sign::ConnectionLost, nullptr, "Barrier timed out"},  // a guess
    {"NODE_FAIL ", Sign::NodeFailure},                                          // a line of sacct's
    {"JobState=NODE_FAIL", Sign::NodeFailure},
    {"JobState=TIMEOUT", Sign::TimeLimit},
    {"JobState=DEADLINE", Sign::TimeLimit},
    {"JobState=OUT_OF_MEMORY", Sign::CgroupOom},
    {"JobState=CANCELLED", Sign::JobCancelled},
    {"Run time ", Sign::CgroupOom, ", OUT_OF_MEMORY"},  // Slurm's mail
    {"Run time ", Sign::TimeLimit, ", TIMEOUT"},
    {"Run time ", Sign::NodeFailure, ", NODE_FAIL"},
    {"TIMEOUT  ", Sign::TimeLimit, "0:"},
    {"OUT_OF_ME", Sign::CgroupOom, "0:"},
    {"preempted_ranks=", Sign::Preempted},  // Ray
    {"is preempted", Sign::Preempted},
    {"got preempted", Sign::Preempted},
    {"being preempted", Sign::Preempted},
    {"ue to preempt", Sign::Preempted},
    {"PREEMPTED", Sign::Preempted},
    {"EventType\": \"Preempt", Sign::Preempted},  // Azure
    {"SpotInterruption", Sign::Preempted},
    {"raining job interrupted", Sign::Preempted},  // SageMaker
    {"Host EC2", Sign::Preempted, "terminated"},   // AWS Batch
    {"imminent node shutdown", Sign::Preempted},   // Kubernetes
    {"ermination is imminent", Sign::Preempted},
    {"in order to admit critical pod", Sign::Preempted},
    {"was preempted", Sign::Preempted},
    {"been preempted", Sign::Preempted},
    {"DRAIN_NODE_REASON_PREEMPTION", Sign::Preempted},  // Ray
    {"preempted=True", Sign::Preempted},
    {"compute.instances.preempted", Sign::Preempted},
    {"because of reclaim", Sign::Preempted},  // Volcano
    {"for reclaim", Sign::Preempted, "vict"},
    {"because of preempt", Sign::Preempted},
    {"reemption imminent", Sign::Preempted},  // Determined
    {"reemption signal", Sign::Preempted},
    {"Preempting", Sign::Preempted, "pod"},
    {"nstance terminated by spot", Sign::Preempted},
    {"pot Instance", Sign::Preempted, "nterrupt"},
    {"pot instance", Sign::Preempted, "recla"},
    {"Preempted to accommodate", Sign::Preempted},  // Kueue
    {"EvictedDueToPreempt", Sign::Preempted},
    {"PreemptScheduled", Sign::Preempted},  // AKS
    {"pot VM", Sign::Preempted, "vict"},
    {"evicted by higher priority", Sign::Preempted},
    {"EvictedByPreemption", Sign::Preempted},
    {"DisruptionTarget", Sign::Preempted},
    {"DUE TO PREEMPTION", Sign::Preempted},
    {"DUE TO JOB REQUEUE", Sign::Preempted},
    {"TERM_PREEMPT", Sign::Preempted},
    {"TERM_REQUEUE", Sign::Preempted},
    {"TERM_LOAD", Sign::Preempted},
    {"auto-requeue signal", Sign::Preempted},         // Lightning
    {"VM preemption", Sign::Preempted},               // Google Batch
    {"received a shutdown signal", Sign::Preempted},  // of GitHub's runners
    {"Interrupted - ", Sign::Preempted, "raining"},   // SageMaker
    {"reempted by ", Sign::Preempted},
    {"PreemptionByScheduler", Sign::Preempted},
    {"PreemptionByKubeScheduler", Sign::Preempted},
    {"TaintManagerEviction", Sign::Preempted},
    {"pot instance interruption", Sign::Preempted},
    {"pot interruption", Sign::Preempted},
    {"reemption notice", Sign::Preempted},
    {"maintenance event", Sign::Preempted, "erminat"},
    {"DUE to SIGNAL", Sign::JobCancelled},
    {"(status: CANCELLED)", Sign::JobCancelled},  // SkyPilot
    {"CANCELLED by ", Sign::JobCancelled},        // sacct
    {"nterrupted by user", Sign::Interrupted},
    {"killing job...", Sign::Interrupted, "mpi"},
    {"abort is already in progress", Sign::Interrupted},
    {"Ctrl-C to processes as requested", Sign::Interrupted},
    {"eceived SIGINT", Sign::Interrupted, nullptr, "gnoring"},
    {"aborted by user", Sign::JobCancelled},
    {"srun: Force Terminated ", Sign::StepCancelled},
    {"salloc: Job allocation ", Sign::JobCancelled, "has been revoked"},
    {"job.exception type=cancel", Sign::JobCancelled},  // Flux
    {" deleted by ", Sign::JobCancelled, "Job "},       // PBS
    {"TaskCancelledError", Sign::JobCancelled},         // Ray
    {"' was stopped", Sign::JobCancelled, "Job '"},
    {"##[error]The operation was cance", Sign::JobCancelled},  // GitHub
    {"condor_rm", Sign::JobCancelled, "via "},
    {"aborted by the user", Sign::JobCancelled},  // HTCondor
    {"stopped by user", Sign::JobCancelled},
    {"Stopped by user", Sign::JobCancelled},
    {"cancelled by user", Sign::JobCancelled},
    {"canceled by user", Sign::JobCancelled},
    {"Cancelled by user", Sign::JobCancelled},
    {"killed by user", Sign::JobCancelled, nullptr, "retry"},
    {"job was cancelled", Sign::JobCancelled},
    {"Job was cancelled", Sign::JobCancelled},
    {"job was canceled", Sign::JobCancelled},
    {"killed by qdel", Sign::JobCancelled},
    {"Job killed by owner", Sign::JobCancelled},
    {"TERM_OWNER", Sign::JobCancelled},
    {"TERM_EXTERNAL_SIGNAL", Sign::JobCancelled},
    {"Job deleted at request of", Sign::JobCancelled},  // PBS
    {"TERM_ADMIN", Sign::JobCancelled},
    {"TERM_FORCE_", Sign::JobCancelled},
    {"low on resource: memory", Sign::CgroupOom},  // an evicted pod
    {"low on resource: ephemeral-storage", Sign::DiskFull},
    {"low on resource: inodes", Sign::DiskFull},
    {"condition: [DiskPressure]", Sign::DiskFull},
    {"condition: [MemoryPressure]", Sign::CgroupOom},
    {"ephemeral local storage usage exceeds", Sign::DiskFull},
    {"Usage of EmptyDir volume", Sign::DiskFull, "exceeds"},
    {"tried to allocate more memory than is available", Sign::CgroupOom},  // Kaggle
    {"node running low on memory", Sign::CgroupOom},
    {"memory usage exceeded request_memory", Sign::CgroupOom},  // HTCondor
    {"Out Of Memory (OOM) error", Sign::CgroupOom},
    {"ran out-of-memory", Sign::CgroupOom},  // Vertex AI
    {"ran out of memory and was", Sign::CgroupOom},
    {"use an instance type with more memory", Sign::CgroupOom},  // SageMaker
    {"OutOfMemoryKilled", Sign::CgroupOom},
    {"Container killed due to memory", Sign::CgroupOom},  // AWS Batch
    {"using all available RAM", Sign::CgroupOom},         // Colab
    {"used too much memory", Sign::CgroupOom, "illed"},
    {"OOM killer terminated", Sign::CgroupOom},  // Cray
    {"OOM killer", Sign::CgroupOom, "illed", "common causes"},
    {"oom killer", Sign::CgroupOom, "illed", "common causes"},
    {"oom_kill event", Sign::CgroupOom},
    {"oom-kill event", Sign::CgroupOom},
    {"OOM Killed", Sign::CgroupOom},
    {"OOMKilled", Sign::CgroupOom, nullptr, "OOMKilled: false"},
    {"\"OOMKilled\": false", Sign::Remark},
    {"OOMKilling", Sign::CgroupOom},
    {"oom-kill:constraint=", Sign::CgroupOom},
    {"oom_reaper: reaped process", Sign::CgroupOom},
    {"invoked oom-killer", Sign::CgroupOom},
    {"systemd-oomd", Sign::CgroupOom, "illed"},
    {"TERM_MEMLIMIT", Sign::CgroupOom},
    {"TERM_SWAP", Sign::CgroupOom},
    {"hard limit \"h_vmem\"", Sign::CgroupOom, "xceed"},  // Grid Engine
    {"result 'oom-kill'", Sign::CgroupOom},               // systemd
    {"cgroup memory limit", Sign::CgroupOom, "over"},     // HTCondor
    {"PBS: job killed: mem", Sign::CgroupOom},
    {"PBS: job killed: vmem", Sign::CgroupOom},
    {"due to memory pressure", Sign::CgroupOom, "illed"},  // Ray
    {"running low on memory", Sign::CgroupOom, "illed"},
    {"ray.exceptions.OutOfMemoryError", Sign::CgroupOom},
    {"cgroup out-of-memory handler", Sign::CgroupOom},
    {"memory limit", Sign::CgroupOom, "xceed"},
    {"memory budget", Sign::CgroupOom, "xceed"},  // Dask
    {"exceeded MEM usage", Sign::CgroupOom},
    {"over memory limit", Sign::CgroupOom},  // HTCondor
    {"Out of memory: Kill", Sign::CgroupOom},
    {"System OOM encountered", Sign::CgroupOom},  // Kubernetes
    {" Evicted  ", Sign::Preempted},              // of kubectl's tables
    {"Memory cgroup out of memory", Sign::CgroupOom},
    {"Killed process", Sign::CgroupOom, "total-vm"},
    {"CANCELLED AT ", Sign::JobCancelled, "*** JOB "},
    {"CANCELLED AT ", Sign::StepCancelled},
    {"srun: error: ", Sign::TaskExit, "task"},
    {"srun: error: ", Sign::NodeFailure, "Communication connection failure"},
    {"interrupt (one more within", Sign::Interrupted},
    {"Received Signals.SIGHUP", Sign::Hangup},
    {"Received 1 death signal", Sign::Hangup},
    {"closing signal SIGHUP", Sign::Hangup},
    {"got signal: 1", Sign::Hangup, nullptr, "got signal: 15"},
    {"jobs SIGHUPed", Sign::Hangup},  // zsh
    {"signal 'hangup'", Sign::Hangup},
    {"signal: hangup", Sign::Hangup},
    {"got SIGHUP", Sign::Hangup, nullptr, "gnoring"},
    {"Got SIGHUP", Sign::Hangup, nullptr, "gnoring"},
    {"terminated by SIGHUP", Sign::Hangup},
    {"aught SIGHUP", Sign::Hangup},
    {"SIGHUP received", Sign::Hangup},
    {"Signals.SIGHUP: 1", Sign::Hangup},
    {"killed by SIGHUP", Sign::Hangup},
    {"signal 1 (Hangup)", Sign::Hangup},
    {"received SIGHUP", Sign::Hangup, nullptr, "gnoring"},
    {"Received SIGHUP", Sign::Hangup, nullptr, "gnoring"},
    {"Received signal SIGHUP", Sign::Hangup},
    {"Hangup                  ", Sign::Hangup},  // as a shell tells it
    {"Received Signals.SIG", Sign::TerminatedFromOutside, "death signal"},
    {"death signal, shutting down", Sign::TerminatedFromOutside},
    {"SignalException: Process ", Sign::TerminatedFromOutside},
    {"SIGTERMException", Sign::TerminatedFromOutside},  // Lightning
    {"eceived SIGTERM", Sign::TerminatedFromOutside},
    {"eceived signal SIGTERM", Sign::TerminatedFromOutside},
    {"eceived signal 15", Sign::TerminatedFromOutside},
    {"Got SIGTERM", Sign::TerminatedFromOutside},
    {"got SIGTERM", Sign::TerminatedFromOutside},
    {"aught signal 15", Sign::TerminatedFromOutside},
    {"got signal: 15", Sign::TerminatedFromOutside},
    {"Signals.SIGTERM: 15", Sign::TerminatedFromOutside},
    {"aught SIGTERM", Sign::TerminatedFromOutside},
    {"SIGTERM received", Sign::TerminatedFromOutside},
    {"eceiving SIGTERM", Sign::TerminatedFromOutside},                // Megatron
    {"Stopping container ", Sign::TerminatedFromOutside, "Killing"},  // Kubernetes
};

}  // namespace

std::span<const Rule> ending_rules() { return kRules; }

}  // namespace braid
