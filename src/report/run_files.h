// The files that a run left, by their names.
#pragma once

#include <string>
#include <vector>

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

}  // namespace braid
