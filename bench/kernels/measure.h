#pragma once

#include "measurement.h"

namespace braid {

// Every operator whose name contains `part`, by Braid's kernel, by ATen, and by the peer that `python` runs if there is
// one.
std::vector<Measurement> measure_kernels(const std::string& part, const std::string& python);

}  // namespace braid
