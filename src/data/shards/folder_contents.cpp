#include "data/shards/folder_contents.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "base/strings.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// Endings in lower case and how many files have them. Folders of pictures may have millions.
std::map<std::string, std::int64_t> endings_in(const std::string& folder) {
  constexpr int kMost = 100'000;
  std::map<std::string, std::int64_t> endings;
  std::error_code error;
  int files = 0;
  for (fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && entry != end && files < kMost; entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    std::string ending = entry->path().extension().string();
    std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
    ++endings[ending];
    ++files;
  }
  return endings;
}

}  // namespace

// Compressed ones are refused by `braid data prepare`.
bool has_tar_files(const std::string& folder) {
  const auto endings = endings_in(folder);
  return endings.contains(".tar") || endings.contains(".tgz") || endings.contains(".gz");
}

Problem without_tar_files(const std::string& folder) {
  const auto endings = endings_in(folder);
  const auto count = [&](const std::vector<std::string>& names) {
    std::int64_t files = 0;
    for (const auto& [ending, number] : endings) files += contains(names, ending) ? number : 0;
    return files;
  };
  const std::int64_t pictures = count({".jpg", ".jpeg", ".png", ".webp"}), texts = count({".json", ".jsonl"});
  const std::string what = fmt::format("'{}' has no .tar files", folder);
  if (endings.empty()) return {what + ": it is empty, or cannot be read", "", "check the path and its permissions"};
  if (pictures > 0)
    return {fmt::format("{}: it has {} and {}", what, counted(pictures, "picture"), counted(texts, "JSON file")), "",
            "write each picture and the JSON of its sample into .tar files as KEY.jpg and KEY.json (docs/data.md has a "
            "script for LLaVA's files), then run `braid data prepare` on their folder"};
  if (count({".jsonl"}) > 0)
    return {what + ": it has .jsonl files", "",
            "give the path of a .jsonl file; a .yaml metadataset can blend several"};
  if (count({".parquet", ".arrow"}) > 0)
    return {what + ": it has .parquet or .arrow files", "",
            "write their samples into .tar files as KEY.jpg and KEY.json, or into a .jsonl file if they are text"};
  return {what, "", "give a folder of .tar files, or a .jsonl file"};
}

}  // namespace braid
