// Whether what a run writes can be written, before any rank starts. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "run/recipe.h"

namespace braid {

// A folder or file that a run writes to.
struct WrittenPath {
  std::string key;  // a recipe key, or the flag
  std::string path;
  enum Kind { Folder, File } kind = Folder;
};
std::vector<WrittenPath> written_paths(const Recipe& recipe);

// By rights, and by trying as the run will; nothing that was made for that stays.
std::vector<Problem> writing_problems(const std::vector<WrittenPath>& paths);

}  // namespace braid
