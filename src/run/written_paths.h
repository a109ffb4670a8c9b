// Checks before any rank starts whether a run's output paths can be written. No libtorch here.
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

// Checks permissions, and tries to write as the run will; removes everything it creates for that.
std::vector<Problem> writing_problems(const std::vector<WrittenPath>& paths);
void require_writable(const std::vector<WrittenPath>& paths);  // ConfigError with all of them

}  // namespace braid
