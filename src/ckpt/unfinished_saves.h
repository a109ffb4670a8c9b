// What a killed save leaves in its folder, and how it is cleaned up. Call these only while holding the folder's lock
// (ckpt/save_lock.h).
//
//   .iter_0000200.partial/            being written
//   .iter_0000200.complete/           complete, but an old one of that name must be removed first
//   iter_0000200/.tracker_pending     complete, but the tracker does not name it yet
//   iter_0000100/.metadata.removed    being removed
//   .iter_0000100.removed             the same, when only the empty folder is left
//   .latest_….txt.PID.tmp             a tracker being written
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace braid {

inline constexpr const char* kTracker = "latest_checkpointed_iteration.txt";
inline constexpr const char* kTrackerPending = ".tracker_pending";

// Finishes the saves that had become complete, and removes everything else that saves have left.
void settle_unfinished(const std::string& root);
bool is_unfinished(std::string_view name);  // of a file or folder in the root

// Renames a complete partial folder to the iteration's name, replacing an older one if there is one.
void rename_to_iteration(const std::string& root, std::int64_t iteration);
std::string complete_folder(const std::string& root, std::int64_t iteration);  // see above

// Makes the tracker name the iteration.
void name_as_latest(const std::string& root, std::int64_t iteration);

void remove_iteration(const std::string& folder);  // marks it as incomplete before removing anything
void remove_tree(const std::filesystem::path& path);

}  // namespace braid
