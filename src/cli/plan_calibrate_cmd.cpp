// braid plan calibrate: measures the hardware profile of this machine.
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/process.h"
#include "cli/commands.h"
#include "cluster/local/host_capacity.h"
#include "cluster/local/local_launcher.h"
#include "comm/visible_gpus.h"
#include "predict/calibrate.h"
#include "run/output_files.h"

namespace braid {
namespace {

constexpr const char* kAsRank = "--collectives-as-rank";  // how this command starts itself

struct CalibrateCommand {
  std::string device, path, collectives_path;
};

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ',');
  return text;
}

// In processes of their own, as in training. Two group sizes, the larger one with more ranks than many hosts have
// cores: it tells how ranks crowd.
void measure_processes(HardwareProfile& profile, const std::function<void(const std::string&)>& report,
                       int& exit_code) {
  std::vector<MeasuredCollective> all;
  for (const int ranks : {2, 4}) {
    report(fmt::format("measuring collectives between {} ranks (of 2 and 4)", ranks));
    const std::filesystem::path path = std::filesystem::temp_directory_path() / ("braid-calibrate-" + make_nonce());
    exit_code = launch_local({.ranks = ranks,
                              .command = {own_executable(), "plan", kPlanCalibrate.name, kAsRank, path.string()},
                              .env = {{"OMP_NUM_THREADS", "1"}}});
    const CollectiveTimes measured = read_collectives(path.string());
    std::filesystem::remove(path);
    if (exit_code != 0)
      throw std::runtime_error(exit_code > 128 ? "the ranks that measure collectives were stopped"
                                               : "the ranks that measure collectives failed; their output is above");
    profile.crowding = measured.crowding;
    std::ranges::copy(at_speed_of(profile, measured), std::back_inserter(all));
  }
  fit_collectives(all, profile);
}

HardwareProfile measured_profile(const std::string& device, int& exit_code) {
  WorkStatus status;
  const auto report = [&](const std::string& what) {
    status.clear();
    fmt::print(stderr, "{}\n", what);
  };
  HardwareProfile profile =
      calibrate({.device = device}, report, [&](const std::string& doing, double share) { status.show(doing, share); });
  status.clear();
  const auto describe = [&](const std::string& name, std::int64_t memory_bytes) {
    profile.note = fmt::format("{}; {}", name, one_line(version_text()));
    profile.memory_gb = static_cast<double>(memory_bytes) / 1e9;
  };
  if (device == "cuda") {
    const GpuFacts gpu = gpu_facts();
    describe(gpu.name, gpu.memory_bytes);
    profile.ranks_per_node = visible_gpus();
    return profile;
  }
  const HostCapacity host = host_capacity();
  describe("one thread per rank, fp32", host.memory_bytes);
  profile.cores = host.cores;
  profile.ranks_per_node = host.cores;
  measure_processes(profile, report, exit_code);
  return profile;
}

void calibrate_machine(const CalibrateCommand& command, int& exit_code) {
  if (!command.collectives_path.empty())
    return measure_collectives_as_rank(command.collectives_path, host_capacity().cores);
  const bool on_gpu = command.device.empty() ? visible_gpus() > 0 : command.device == "cuda";
  if (on_gpu && visible_gpus() == 0) throw ConfigError(no_gpu("--device"));
  check_outputs({{"--write", command.path, {".yaml", ".yml"}}}, {});  // before the measurement, which takes minutes
  const std::string yaml = to_yaml(measured_profile(on_gpu ? "cuda" : "cpu", exit_code));
  if (command.path.empty()) return fmt::print("{}", yaml);
  write_output(command.path, yaml);
  fmt::print("written to {}; use it with --hardware {}\n", command.path, command.path);
}

}  // namespace

Command plan_calibrate_command() {
  const auto o = std::make_shared<CalibrateCommand>();
  return {
      .name = kPlanCalibrate.name,
      .help = kPlanCalibrate.help,
      .options = {{"--device", &o->device, "cuda or cpu; default: a GPU if there is one",
                   Rules{.check = OneOf{{"cuda", "cpu"}}}},
                  {"--write", &o->path, "write the profile to this file; default: print it"},
                  {kAsRank, &o->collectives_path, "", Rules{.hidden = true}}},
      .footer =
          "Measures how fast this machine runs Braid's operators, for two to four minutes on 2 cores, and prints a "
          "hardware profile for `braid plan simulate --hardware FILE`. Nothing else should run meanwhile. On a CPU it "
          "measures collectives between processes, too; links between GPUs are to be added to the profile of a GPU by "
          "hand.",
      .run = [o](Call& call) { calibrate_machine(*o, call.exit_code); }};
}

}  // namespace braid
