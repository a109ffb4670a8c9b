// The speeds and sizes of a machine, measured by `braid plan calibrate`, or taken from a datasheet. No libtorch here.
#pragma once

#include "paper/work.h"

namespace braid {

// The profiles of hardware/, embedded in the program as text. cmake/StoredProfiles.cmake writes the source file.
struct StoredProfile {
  std::string_view name, yaml;
};
const std::vector<StoredProfile>& stored_profiles();

// How fast a link moves a message of some bytes, or an operator computes at given sizes (see Work).
struct Rate {
  std::array<double, 3> size;       // of a link: bytes, 1, 1
  double giga_per_s;                // 1e9 floating-point operations, or bytes, per second
  std::array<double, 3> log2_size;  // cached, because every prediction needs it

  Rate(const std::array<double, 3>& size, double giga_per_s);
  Rate(double bytes, double giga_per_s) : Rate({bytes, 1, 1}, giga_per_s) {}
};

struct Speed {
  double latency_us = 0;      // time of an empty message, or of a call without any work
  std::vector<Rate> rates{};  // of a link: by ascending bytes
};

enum class Source { Same, Measured, Datasheet };  // of the numbers in a profile
constexpr auto choice_names(Source) { return std::array{"same", "measured", "datasheet"}; }

struct HardwareProfile {
  std::string name{};
  Source source = Source::Datasheet;
  Source links_source = Source::Same;
  std::string note{};                        // where the numbers come from
  DeviceChoice device = DeviceChoice::Cuda;  // never Auto
  double memory_gb = 0;                      // memory of a GPU or of the host, in 1e9 bytes
  int ranks_per_node = 8;                    // GPUs that inside_node links; on a CPU, ranks share `cores`
  int cores = 0;                             // cores of a host whose ranks compute on its CPU
  double host_us = 0;                        // time to start a kernel; on a CPU: added time of an operator in a model
  double collective_us = 0;                  // time of a collective's call besides its messages
  double crowding = 1;                       // factor on the CPU time of ranks if they outnumber the cores
  double collective_cpu = 1;  // on a CPU: the share of a collective's time that a rank computes; it sleeps the rest
  Speed inside_node{}, between_nodes{};       // per GPU and direction
  std::array<Speed, kOperators> operators{};  // without rates: speed_of() names a substitute
};

// In bytes per second: interpolated over the logarithm of the size, and constant beyond the outermost points.
double rate_of(const Speed& link, double bytes);

// The measured speed of an operator, or else of the most similar operator that was measured.
const Speed& speed_of(const HardwareProfile& profile, Operator op);

// One of the profiles that are part of the program ("h100"), or a YAML file. Throws a ConfigError with all problems.
HardwareProfile load_hardware(const std::string& name_or_path);
std::vector<std::string> hardware_names();

HardwareProfile parse_hardware(const std::string& yaml, const std::string& name);
// parse_hardware() inverts this.
std::string to_yaml(const HardwareProfile& profile);

// Throws a ConfigError if this many ranks need a link that the profile lacks.
void check_links(const HardwareProfile& profile, int ranks);

// Whether ranks compute on the CPU of one host, whose memory and cores they share.
inline bool is_host(const HardwareProfile& profile) { return profile.device == DeviceChoice::Cpu; }
// Places all ranks of a host on one node, however many there are. Other profiles are returned unchanged.
HardwareProfile on_one_host(HardwareProfile profile, int ranks);

// "GPU", or "rank" on a CPU, whose ranks share a host: for rates and counts.
inline std::string device_word(const HardwareProfile& profile) { return is_host(profile) ? "rank" : "GPU"; }

// "h100 (from a datasheet, not measured)": for every result that uses the profile.
std::string described(const HardwareProfile& profile);

}  // namespace braid
