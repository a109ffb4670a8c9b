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
GpuFacts gpu_facts();  // of the first GPU

struct CalibrationOptions {
  std::string device = "cuda";  // or cpu
  double seconds = 25;          // to measure operators for; the shortest possible time is a few rounds through all
};

// The speeds of operators, and what the host needs to start them. `report` is told what is measured next.
HardwareProfile calibrate(const CalibrationOptions& options, const std::function<void(const std::string&)>& report,
                          const TellProgress& tell);

}  // namespace braid
