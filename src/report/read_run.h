// A run from the files that it left, which are found by their names.
#pragma once

#include <string>
#include <vector>

#include "report/run_record.h"

namespace braid {

struct RunFiles {
  std::string name{};  // of the run, for people
  std::string folder{};
  std::vector<std::string> metrics{}, events{}, logs{}, checkpoint_roots{};  // sorted
  std::string recipe{}, plan{};                                              // empty: none
};

// What a folder contains, and everything below it. A folder with several metrics files side by side, as that of
// Slurm's jobs, has several runs: NAME.jsonl, NAME.log, NAME.yaml. If metrics files lie in several folders, each
// subfolder has runs of its own; those without metrics belong to the folder above if that has a metrics file. A file
// stands for the run it belongs to. Names are the shortest endings of paths that tell the runs apart. ConfigError when
// there is no such path, or nothing in it that a run leaves.
std::vector<RunFiles> find_runs(const std::vector<std::string>& paths);

// Reads all of them; what is damaged or cut off is a warning. Each curve comes from the first source that has it: the
// metrics file has every iteration, event files and the log have one per interval. Folders that the recipe names are
// read, too, where they exist. `plan_path`: a plan's JSON, instead of plan.json in the folder; ConfigError when it
// cannot be read.
RunRecord read_run(RunFiles files, const std::string& plan_path = "");

}  // namespace braid
