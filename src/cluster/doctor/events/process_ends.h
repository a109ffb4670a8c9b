// How processes ended, as mpirun, MPICH, Kubernetes, shells and the launchers of other frameworks tell it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "cluster/doctor/events/findings.h"

namespace braid {

// Some tell the process in one line and its exit code in one of the next.
class ProcessEnds {
 public:
  // The end that this line completes; its ranks are empty where it names none.
  std::optional<WorkerExit> feed(std::string_view body, std::uint64_t line);

 private:
  std::optional<WorkerExit> named_;  // a process whose exit code is still to come
  std::uint64_t named_at_ = 0;
};

}  // namespace braid
