// What is looked at before any rank starts: whether the checkpoint to load is there, sound as far as its small files
// tell, of this model and of this schedule, and whether what the run writes can be written. `where` of each problem is
// a dotted recipe key. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "train/recipe.h"

namespace braid {

// Tensors are not read here: damage of theirs is found by the ranks.
std::vector<Problem> load_problems(const Recipe& recipe, const Topology& topology);

// A folder or file that a run writes to.
struct WrittenPath {
  std::string key;  // a recipe key, or the flag
  std::string path;
  enum Kind { Folder, File } kind = Folder;
};
std::vector<WrittenPath> written_paths(const Recipe& recipe);

// By rights alone: nothing is made.
std::vector<Problem> rights_problems(const std::vector<WrittenPath>& paths);
// By trying, as the run will: folders and files are there afterwards.
std::vector<Problem> writing_problems(const std::vector<WrittenPath>& paths);

}  // namespace braid
