#pragma once

#include <string>

#include "base/config.h"

namespace braid {

struct CommConfig {
  std::string device = "auto";     // auto: cuda if there is a GPU
  std::string backend = "auto";    // auto: nccl with a GPU per rank, else gloo; nccl-shared: tests
  double hang_limit_s = 300;       // no progress for this long: the run is ended and the stuck rank named
  double silence_limit_s = 30;     // no message from a rank's monitor for this long: the rank or its host is lost
  double connect_timeout_s = 300;  // how long ranks wait for each other at start
};

inline void describe(Fields& f, CommConfig& c) {
  f.choice("device", c.device, {"auto", "cpu", "cuda"}, "device of the tensors");
  f.choice("backend", c.backend, {"auto", "gloo", "nccl", "nccl-shared"}, "transport of collectives");
  f.field("hang_limit_s", c.hang_limit_s, "end the run when a rank makes no progress for this long");
  f.field("silence_limit_s", c.silence_limit_s, "end the run when a rank or host sends no heartbeat for this long");
  f.field("connect_timeout_s", c.connect_timeout_s, "how long ranks wait for each other at start");
}

}  // namespace braid
