#include "ckpt/file_names.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/strings.h"

namespace braid {

namespace fs = std::filesystem;

std::string iteration_folder(const std::string& root, std::int64_t iteration) {
  return fmt::format("{}/iter_{:07}", root, iteration);
}

std::optional<std::int64_t> iteration_of(const std::string& name) {
  const auto iteration = name.starts_with("iter_") ? parse_int64(name.substr(5)) : std::nullopt;
  return iteration && name == fmt::format("iter_{:07}", *iteration) ? iteration : std::nullopt;
}

std::string partial_folder(const std::string& root, std::int64_t iteration) {
  return fmt::format("{}/.iter_{:07}.partial", root, iteration);
}

std::vector<std::int64_t> iterations_in(const std::string& root, Complete complete) {
  std::vector<std::int64_t> iterations;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, error))
    if (const auto iteration = iteration_of(entry.path().filename().string()))
      if (entry.is_directory(error) && (complete == Complete::OrNot || fs::exists(entry.path() / ".metadata", error)))
        iterations.push_back(*iteration);
  std::sort(iterations.begin(), iterations.end());
  return iterations;
}

}  // namespace braid
