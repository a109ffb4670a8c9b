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

// Refuses to replace the file `input`, and existing shards, indexes, recipes and metadatasets.
void check_replaceable(const std::string& flag, const std::string& file, const std::string& input);
[[noreturn]] void refuse_to_replace(const std::string& flag, const std::string& file);

// Checks permissions, and tries to write as the run will; removes everything it creates for that.
std::vector<Problem> writing_problems(const std::vector<WrittenPath>& paths);

}  // namespace braid
