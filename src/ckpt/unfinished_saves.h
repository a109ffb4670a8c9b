// What a save that was killed leaves in its folder, and what becomes of it. Only whoever holds the folder's lock
// (ckpt/save_lock.h) may call these.
//
//   .iter_0000200.partial/            being written
//   .iter_0000200.complete/           complete, but the old one of that name has to go first
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

// Gives a complete partial folder the iteration's name, in place of an older one where there is one.
void put_in_place(const std::string& root, std::int64_t iteration);
std::string complete_folder(const std::string& root, std::int64_t iteration);  // see above

// Has the tracker name the iteration.
void name_as_latest(const std::string& root, std::int64_t iteration);

void remove_iteration(const std::string& folder);  // which stops being complete before anything of it is gone
void remove_tree(const std::filesystem::path& path);

}  // namespace braid
