// Measures how fast Braid's own operators are on this machine. No libtorch here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/terminal.h"
#include "predict/hardware.h"

namespace braid {

struct GpuFacts {
  std::string name;
  std::int64_t memory_bytes = 0;
};
GpuFacts gpu_facts();  // describes the first GPU

struct CalibrationOptions {
  std::string device = "cuda";  // or cpu
  double seconds = 25;          // spent on measuring operators; a few rounds through all of them always run
};

// Measures the speeds of operators and the host's time to start them. `report` receives what is measured next.
HardwareProfile calibrate(const CalibrationOptions& options, const std::function<void(const std::string&)>& report,
                          const TellProgress& tell);

}  // namespace braid
