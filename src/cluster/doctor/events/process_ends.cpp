#include "cluster/doctor/events/process_ends.h"

#include <csignal>

#include "cluster/doctor/lines/text_parts.h"
#include "cluster/doctor/lines/text_pattern.h"

namespace braid {
namespace {

constexpr std::uint64_t kLinesBetween = 5;

struct End {
  const char* pattern;
  bool first = false;         // the launcher says that this one ended first
  int code = 0;               // where it tells none
  bool has_raw_kill = false;  // the launcher writes SIGKILL as 9, without 128
};

// The first that matches counts. What DeepSpeed and others quote before "exits with" is the command of the last process
// they started, whatever process failed.
constexpr End kEnds[] = {
    {"process rank %r with PID %n on node %h exited on signal %s", true},  // mpirun, prterun
    {"process rank %r with PID %n on node %h exited with exit code %c", true},
    {"Primary job  terminated normally, but %n process returned a non-zero exit code"},
    {"first noticed rank %r) terminated with signal %s", true},  // jsrun
    {"rank %r died from signal %s", true},                       // PALS
    {"PE RANK %r exit signal Killed", true, -SIGKILL},           // Cray
    {"PE RANK %r exit signal Segmentation", true, -SIGSEGV},
    {"PE RANK %r exit signal Abort", true, -SIGABRT},
    {"PE RANK %r exit code %c", true},
    {"rank %r exited with code %c"},
    {"Rank %r crashed with exit code %c", true},  // Composer
    {"process with rank=[%r", true, 1},           // Paddle
    {"(rank %r in comm %n): ", true, 1},          // MPICH
    {"application called MPI_Abort(%w, %c) - process %r", true},
    {"application called MPI_Abort(comm=%w, %c) - process %r", true},
    {"reported by process [%n,%r]", true, 1},  // Open MPI
    {"exited due to process rank %r with PID %n on", true, 1},
    {"exit status of rank %r: killed by signal %s", true},  // MPD
    {"exit status of rank %r: return code %c", true},
    {"Abnormal termination (signal %s)"},                 // HTCondor
    {"ontainer rank %r status failed%*] code %c", true},  // Paddle
    {"CheckpointException ranks:dict_keys([%r", true, 1},
    {"MPI process (rank: %r, pid: %n) terminated with signal %s", true},  // MVAPICH
    {"MPI process (rank: %r, pid: %n) exited with status %c", true},
    {" task %r: exited abnormally", true, 1},  // srun
    {"signal termination: %s"},                // LSF
    {"signal termination: Killed", false, -SIGKILL},
    {"signal termination: Segmentation", false, -SIGSEGV},
    {"signal termination: Abort", false, -SIGABRT},
    {"Normal termination (return value %c"},  // HTCondor
    {"code=killed, status=%s"},               // systemd
    {"code=dumped, status=%s"},
    {"code=exited, status=%c"},
    {"return code Negsignal.%S"},                    // Airflow
    {"process %r terminated with signal %S", true},  // torch.multiprocessing of old
    {"process %r terminated with exit code %c", true},
    {"non-zero status code %c"},
    {"exited with a non-zero status of %c"},  // Vertex AI
    {"lobal rank %r (PID %n) exited with code %c"},
    {"Process %r exit with status code %c", true},  // Horovod
    {"died with <Signals.%S"},
    {"terminated with code %c", true},  // Lightning
    {"returned non-zero exit status %c"},
    {"exits with return code = %c"},
    {"MPI_ABORT was invoked on rank %r in communicator MPI_COMM_WORLD%_with errorcode %c", true},
    {"with errorcode %c"},
    {"] Error %c"},
    {"exited on signal %s"},
    {"exited with signal %s"},
    {"xited by signal %s"},
    {"terminated with signal %s"},
    {"terminated by signal %s"},
    {"terminated by signal %S"},
    {"killed by signal %s"},
    {"killed by signal: %s"},
    {"killed by signal %S"},
    {"KILLED BY SIGNAL: %s"},
    {"(signal %s)"},
    {"exited with exit code %c"},
    {"Exited with exit code %c"},
    {"exited with code %c"},
    {"exited with code: %c"},
    {"erminated with exit code %c"},
    {"exit with status code %c"},
    {"xited with status%~%c"},
    {"# Ended (code %c"},               // Kaldi, ESPnet
    {"EXIT CODE: %c", false, 0, true},  // MPICH
    {"xit code%~%c"},
    {"xit Code%~%c"},
    {"xitCode%~%c"},
    {"xitcode%~%c"},
    {"xit_code%~%c"},
    {"xit status%~%c"},
    {"xit_status%~%c"},
    {"eturn code%~%c"},
    {"eturn_code%~%c"},
    {"eturncode%~%c"},
    {"error code %c"},
    {"signal %s ("},
    {"process exited without calling finalize", true, 1},  // MS-MPI
};

// Lines that name a process, before the line with its code.
constexpr const char* kNames[] = {
    "process rank %r with PID %n on node %h exited on",  // where the line is broken before its signal
    "Process name: [[%n,%n],%r]",                        // Open MPI
    "Process name: [%w@%n,%r]",                          // PRRTE
    "Process name: %r",                                  // Horovod
    "RANK %r PID %n RUNNING AT %h",                      // Intel MPI
    "PID %n RUNNING AT %h",                              // MPICH
    "MPI_ABORT was invoked on rank %r in communicator",
};

WorkerExit exit_of(const Caught& caught, bool first, int code = 0) {
  WorkerExit exit;
  if (caught.rank) exit.ranks = {*caught.rank};
  exit.host = caught.host;
  exit.code = caught.signal ? -*caught.signal : caught.code.value_or(code);
  exit.root = first;
  return exit;
}

}  // namespace

std::optional<WorkerExit> ProcessEnds::feed(std::string_view body, std::uint64_t line) {
  Caught caught;
  if (named_ && line > named_at_ + kLinesBetween) named_.reset();
  for (const End& end : kEnds)
    if (match_inside(end.pattern, body, caught)) {
      WorkerExit exit = exit_of(caught, end.first, end.code);
      if (end.has_raw_kill && exit.code == SIGKILL) exit.code = -SIGKILL;
      if (named_ && exit.ranks.empty()) {
        exit.ranks = named_->ranks;
        exit.host = named_->host;
        exit.root = true;
        named_.reset();
      }
      return exit;
    }
  for (const char* name : kNames)
    if (match_inside(name, body, caught)) {
      named_ = exit_of(caught, true);
      named_at_ = line;
      return std::nullopt;
    }
  return std::nullopt;
}

}  // namespace braid
