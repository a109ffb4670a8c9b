#include "predict/work_time.h"

#include <algorithm>
#include <cmath>

namespace braid {
namespace {

// Rates at measured sizes, weighted by how near they are: the inverse fourth power of the distance between the
// logarithms of the sizes. Exact at a measured size, and between the rates of its neighbours elsewhere.
double giga_per_s(const OperatorSpeed& speed, const std::array<double, 3>& size) {
  double weights = 0, logs = 0;
  for (const OperatorRate& rate : speed.rates) {
    double squares = 0;
    for (std::size_t i = 0; i < size.size(); ++i) squares += std::pow(std::log2(size[i] / rate.size[i]), 2);
    const double weight = 1 / std::pow(squares + 1e-6, 2);
    weights += weight;
    logs += weight * std::log(rate.giga_per_s);
  }
  return std::exp(logs / weights);
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
  return hardware.device == "cpu" ? device + host : std::max(device, host);
}

}  // namespace braid
