// What a machine can do, as numbers: measured by `braid plan calibrate`, or taken from a datasheet. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"

namespace braid {

// How fast a link, or the memory, moves messages of a size. Between points the rate is interpolated by the logarithm of
// the size; beyond them it stays.
struct RatePoint {
  double bytes = 0, gb_per_s = 0;
};

struct Link {
  double latency_us = 0;  // of an empty message
  std::vector<RatePoint> rates{};
};

struct HardwareProfile {
  std::string name{};
  std::string source = "datasheet";  // or measured
  std::string note{};                // where the numbers come from
  std::string device = "cuda";       // or cpu
  double memory_gb = 0;              // of a GPU, or of the host; 1e9 bytes
  int ranks_per_node = 8;            // GPUs; on a CPU, ranks share `cores`
  int cores = 0;                     // of a host whose ranks compute on its CPU
  Link inside_node{}, between_nodes{};  // per GPU and direction
};

void describe(Fields& fields, HardwareProfile& profile);

// The rate at a message's size, in bytes per second.
double rate_of(const Link& link, double bytes);

// One of the profiles that are part of the program ("h100"), or a YAML file. Throws a ConfigError with all problems.
HardwareProfile load_hardware(const std::string& name_or_path);
std::vector<std::string> hardware_names();

}  // namespace braid
