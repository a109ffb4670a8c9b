// Rows of the table that compares times on a GPU with other programs and with the GPU's limits.
#pragma once

#include "base/strings.h"

namespace braid {

struct Measurement {
  std::string work;
  double ms = 0;
  std::optional<double> peer_ms{}, aten_ms{};
  double bytes = 0, flops = 0;  // that it must move and compute; 0: not counted
  bool fp8 = false;             // its products are in fp8, which has twice the limit of bf16
};

inline std::string format_measurements(const std::vector<Measurement>& measurements) {
  constexpr double kBytesPerMs = 4.2e9, kFlopsPerMs = 790e9;  // what streams and large bf16 products reach on an H200
  const auto unless_zero = [](double value) { return value > 0 ? fmt::format("{:.0f}", value) : ""; };
  std::vector<std::vector<std::string>> rows;
  for (const Measurement& m : measurements) {
    std::vector<std::string> row = {m.work, fmt::format("{:.3f}", m.ms)};
    for (const std::optional<double>& other : {m.peer_ms, m.aten_ms}) {
      row.push_back(other ? fmt::format("{:.3f}", *other) : "");
      row.push_back(other ? fmt::format("{:.2f}", *other / m.ms) : "");
    }
    const double limit_ms = std::max(m.bytes / kBytesPerMs, m.flops / (m.fp8 ? 2 * kFlopsPerMs : kFlopsPerMs));
    row.push_back(unless_zero(m.bytes / m.ms / 1e6));
    row.push_back(unless_zero(m.flops / m.ms / 1e9));
    row.push_back(fmt::format("{:.0f} %", 100 * limit_ms / m.ms));
    rows.push_back(row);
  }
  return format_table({"work", "ms", "peer's ms", "/ ms", "ATen's ms", "/ ms", "GB/s", "TFLOP/s", "of the limit"},
                      rows);
}

}  // namespace braid
