// How processes end, as launchers tell it: the table in process_ends.cpp reads most of these.
#include "cluster/doctor/events/signs.h"

namespace braid {
namespace {

constexpr Rule kRules[] = {
    {"StartError", Sign::NotLaunched, "exited with"},  // Vertex AI
    {"exits with return code = ", Sign::ProcessEnd},
    {"noticed that process rank", Sign::ProcessEnd},
    {"Process name: ", Sign::ProcessEnd},
    {"RUNNING AT ", Sign::ProcessEnd},
    {"KILLED BY SIGNAL", Sign::ProcessEnd},
    {"EXIT CODE: ", Sign::ProcessEnd},
    {"EXIT STRING: ", Sign::ProcessEnd},
    {"MPI_ABORT was invoked", Sign::ProcessEnd},
    {"application called MPI_Abort(", Sign::ProcessEnd},
    {"reported by process [", Sign::ProcessEnd},
    {"exited due to process rank", Sign::ProcessEnd},
    {"exit status of rank ", Sign::ProcessEnd},
    {"process exited without calling finalize", Sign::ProcessEnd},  // MS-MPI
    {"with errorcode ", Sign::ProcessEnd},
    {"] Error 1", Sign::ProcessEnd},                    // make
    {"trainer process with rank=[", Sign::ProcessEnd},  // Paddle
    {" in comm 0): ", Sign::ProcessEnd},                // MPICH
    {"Abnormal termination (signal", Sign::ProcessEnd},
    {"CheckpointException ranks:", Sign::ProcessEnd},
    {"signal 9 (Killed)", Sign::ProcessEnd},
    {"signal 11 (Segmentation fault)", Sign::ProcessEnd},
    {"signal 6 (Aborted)", Sign::ProcessEnd},
    {"signal 7 (Bus error)", Sign::ProcessEnd},
    {"signal 8 (Floating", Sign::ProcessEnd},
    {"signal 4 (Illegal", Sign::ProcessEnd},
    {"terminated with signal SIG", Sign::ProcessEnd, "rocess "},  // torch.multiprocessing of old
    {"with a non-zero status code", Sign::ProcessEnd},
    {"exited with a non-zero status of", Sign::ProcessEnd},  // Vertex AI
    {"died from signal", Sign::ProcessEnd},
    {"died with <Signals.", Sign::ProcessEnd},
    {"first noticed rank", Sign::ProcessEnd},
    {"PE RANK ", Sign::ProcessEnd, "exit"},  // Cray
    {"exited with code", Sign::ProcessEnd},
    {"exit with status code", Sign::ProcessEnd},
    {"exited on signal", Sign::ProcessEnd},
    {"exited with signal", Sign::ProcessEnd},
    {"xited by signal", Sign::ProcessEnd},  // LSF
    {"terminated with signal", Sign::ProcessEnd, nullptr, "process "},
    {"terminated by signal", Sign::ProcessEnd},
    {"terminated with code", Sign::ProcessEnd},
    {"erminated with exit code", Sign::ProcessEnd, nullptr, "rocess "},
    {"killed by signal", Sign::ProcessEnd, nullptr, "is killed by signal"},
    {"error code -", Sign::ProcessEnd},
    {"xit code", Sign::NativeCrash, " -1073741"},  // Windows
    {"xit code", Sign::NativeCrash, " 0xc00000"},
    {"xit code", Sign::NativeCrash, " 322122"},
    {"xit code", Sign::ProcessEnd, nullptr, "== failed"},
    {"xited with status", Sign::ProcessEnd},
    {"# Ended (code ", Sign::ProcessEnd},  // Kaldi, ESPnet
    {"xit Code", Sign::ProcessEnd},
    {"xitCode", Sign::ProcessEnd},
    {"xitcode", Sign::ProcessEnd, nullptr, "(pid: "},  // torchrun: see FailureBlock
    {"xit_code", Sign::ProcessEnd},
    {"xit_status", Sign::ProcessEnd},            // PBS, Grid Engine
    {": exited abnormally", Sign::ProcessEnd},   // srun
    {"signal termination: ", Sign::ProcessEnd},  // LSF
    {"Normal termination (return value", Sign::ProcessEnd},
    {"MPI process (rank: ", Sign::ProcessEnd},   // MVAPICH
    {"code=killed, status=", Sign::ProcessEnd},  // systemd
    {"code=dumped, status=", Sign::ProcessEnd},
    {"code=exited, status=", Sign::ProcessEnd},
    {"xit status", Sign::ProcessEnd},
    {"eturn code", Sign::ProcessEnd},
    {"eturn_code", Sign::ProcessEnd},
    {"eturncode", Sign::ProcessEnd},
    {"ontainer rank ", Sign::ProcessEnd, "status failed"},       // Paddle
    {"-- Process ", Sign::SpawnedProcess, " terminated with "},  // torch.multiprocessing.spawn
    {"ProcessExitedException", Sign::SpawnedProcess},
    {"ProcessRaisedException", Sign::SpawnedProcess},
};

}  // namespace

std::span<const Rule> process_rules() { return kRules; }

}  // namespace braid
