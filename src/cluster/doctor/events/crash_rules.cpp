// What went wrong by itself: arguments, crashes, errors of NCCL that say no more.
#include "cluster/doctor/events/signs.h"

namespace braid {
namespace {

constexpr Rule kRules[] = {
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
    {"Check failed: ", Sign::PortInUse, "bind failed"},  // glog
    {"Check failed: ", Sign::RendezvousFailed, "onnect failed"},
    {"Check failed: ", Sign::RendezvousFailed, "ailed to connect"},
    {"Check failed: ", Sign::RendezvousFailed, "onnection"},
    {"Check failed: ", Sign::NativeCrash},
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

std::span<const Rule> crash_rules() { return kRules; }

}  // namespace braid
