// Which schedulers and launchers speak in a log: advice is for those.
#pragma once

#include <string_view>

namespace braid {

struct Launchers {
  bool slurm = false, kubernetes = false, lsf = false, ray = false, mpi = false, torchrun = false;

  void note(std::string_view line);
};

}  // namespace braid
