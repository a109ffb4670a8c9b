// A fake cluster on which generated scripts run in bash.
#pragma once

#include "base/strings.h"
#include "cluster/megatron/commands.h"
#include "cluster/slurm/script.h"
#include "support/programs.h"

namespace braid::testing {

inline const std::string kLaunchTests = BRAID_SOURCE_DIR "/tests/cluster/local";

using Call = std::vector<std::string>;

// A folder in which a script runs as if sbatch had started it on two nodes.
class FakeCluster {
 public:
  FakeCluster() {
    for (const char* name : {"fake", "record", "work/sub", "logs"})
      std::filesystem::create_directories(folder_.path() + "/" + name);
  }

  SlurmOptions options() const {
    SlurmOptions options;
    options.nodes = 2;
    options.gpus_per_node = 2;
    options.job_name = "job";
    options.output = "job.sbatch";
    options.workdir = options.host_workdir = path("work");
    options.log_dir = path("logs");
    return options;
  }

  Finished run(const std::string& script, const std::string& then = "") const {
    const std::string file = folder_.write("job.sbatch", script);
    const std::string shell = "bash " + file + " >" + path("logs/job_4242.log") + " 2>&1";
    return run_program({"bash", "-c", "cd " + path("work") + "\n" + (then.empty() ? shell : shell + " & " + then)},
                       environment());
  }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string log() const { return read_file(path("logs/job_4242.log")); }
  std::string asked_of(const std::string& program) const { return read_file(path("fake/" + program)); }

  // How the recorded programs were called by one task of one step.
  std::vector<Call> calls(int step, int task) const {
    std::vector<std::string> words = split(read_file(record(step, task)), '\0');
    words.pop_back();
    std::vector<Call> calls;
    for (std::size_t i = 0; i < words.size();) {
      const auto size = static_cast<std::size_t>(*parse_int(words[i]));
      calls.emplace_back(words.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                         words.begin() + static_cast<std::ptrdiff_t>(i + 1 + size));
      i += 1 + size;
    }
    return calls;
  }
  std::string environment_of(int step, int task) const { return read_file(record(step, task) + ".env"); }

 private:
  std::string record(int step, int task) const { return path(fmt::format("record/step{}_task{}", step, task)); }
  std::map<std::string, std::string> environment() const {
    return {{"PATH", kLaunchTests + "/fake_slurm:" + kLaunchTests + "/recorded_programs:" + std::getenv("PATH")},
            {"PROGRAMS", kLaunchTests + "/recorded_programs"},
            {"FAKE_SLURM", path("fake")},
            {"RECORD", path("record")},
            {"SLURM_JOB_ID", "4242"},
            {"SLURM_JOB_NODELIST", "node[1-2]"}};
  }

  TemporaryFolder folder_;
};

inline std::string script_of(const SlurmOptions& options, const std::string& text) {
  SlurmJob job = job_of_command(options, text);
  job.made_by = "braid launch slurm ... -- " + text;
  return slurm_script(options, job);
}

}  // namespace braid::testing
