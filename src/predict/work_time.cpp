#include "predict/work_time.h"

#include <algorithm>
#include <cmath>

namespace braid {
namespace {

// Averages times per operation (or byte) over the measured sizes, weighted by the inverse fourth power of the distance
// between the logarithms of the sizes. The result is exact at a measured size and between its neighbours elsewhere.
// Times rather than rates are averaged, because a size may have been measured as a forward and as a backward, and both
// will run.
double giga_per_s(const OperatorSpeed& speed, const std::array<double, 3>& size) {
  const std::array<double, 3> at = {std::log2(size[0]), std::log2(size[1]), std::log2(size[2])};
  double weights = 0, times = 0;
  for (const OperatorRate& rate : speed.rates) {
    double squares = 1e-6;  // at a measured size, too
    for (std::size_t i = 0; i < at.size(); ++i) squares += (at[i] - rate.log2_size[i]) * (at[i] - rate.log2_size[i]);
    const double weight = 1 / (squares * squares);
    weights += weight;
    times += weight / rate.giga_per_s;
  }
  return weights / times;
}

}  // namespace

double seconds_of(const Work& work, const HardwareProfile& hardware) {
  if (work.amount <= 0) return 0;
  const OperatorSpeed& speed = speed_of(hardware, work.op);
  return work.count * (speed.latency_us * 1e-6 + work.amount / (giga_per_s(speed, work.size) * 1e9));
}

double seconds_of(const std::vector<Work>& work, const HardwareProfile& hardware) {
  double device = 0, host = 0;
  for (const Work& each : work) {
    if (each.when == When::FirstMicrobatch) continue;
    device += seconds_of(each, hardware);
    host += each.count * each.launches * hardware.host_us * 1e-6;
  }
  return is_host(hardware) ? device + host : std::max(device, host);
}

}  // namespace braid
