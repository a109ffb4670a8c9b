// A folder of checkpoints with one subfolder per iteration, and how an iteration is saved: it is written under a
// temporary name that is never loaded, synced to disk, renamed, and only then recorded as the latest.
//
//   <root>/latest_checkpointed_iteration.txt
//   <root>/iter_0000100/          complete
//   <root>/.iter_0000200.partial/ being written, or left by a run that died
//
// To save one: hold the root's SaveLock; call begin_iteration() on one rank; on every writer, use a DistWriter in the
// partial folder and then call hand_in(); call publish() on one rank after all writers have handed in.
#pragma once

#include "ckpt/checkpoint_files.h"
#include "formats/pickle.h"

namespace braid {

class DistWriter;

// --- iterations

// The iteration in the tracker (else DataError), or without one the newest complete; nothing without a checkpoint.
std::optional<std::int64_t> read_tracker(const std::string& root);
// The same, and checks that the iteration exists.
std::optional<std::int64_t> latest_iteration(const std::string& root);

// The content of an iteration's folder, judged by file names.
struct IterationFiles {
  int count = 0;
  std::int64_t bytes = 0;
  std::vector<int> writers{};  // ascending: the ranks that wrote .distcp files
  std::time_t saved_at = 0;
};
IterationFiles files_of(const std::string& folder);

// The iteration folder that `path` refers to: itself, or the latest of a root; nothing when there is no checkpoint.
// DataError when the tracker is wrong or everything is damaged; with a fallback, the newest complete iteration instead.
std::optional<std::string> find_iteration(const std::string& path, bool falls_back = false);
// The same without a fallback. DataError when there is no checkpoint.
std::string resolve_iteration(const std::string& path);
// DataError when the folder has iterations of which none is complete: what was saved is damaged, not missing.
void refuse_damaged_only(const std::string& root);

// Creates the partial folder, and the root if missing. First settles unfinished saves, to free disk space.
void begin_iteration(const std::string& root, std::int64_t iteration);

// Call after DistWriter::finish(): records for publish() what the writer has written.
void hand_in(const std::string& partial, int writer, const DistWriter& written);
bool handed_in(const std::string& partial, int writer);

// Afterwards the tracker names this iteration; for a Guest, who converts checkpoints, only if it is the newest.
// Returns the bytes of all files.
enum class Saver { Run, Guest };
std::int64_t publish(const std::string& root, std::int64_t iteration, int writers, const std::string& common_pt,
                     Saver saver = Saver::Run);

// Removes all but the newest `keep` iterations.
void remove_old_iterations(const std::string& root, int keep);

// --- what a killed save leaves in its folder, and how it is cleaned up
//
// Call these only while holding the folder's lock (ckpt/save_lock.h).
//
//   .iter_0000200.partial/            being written
//   .iter_0000200.complete/           complete, but an old one of that name must be removed first
//   iter_0000200/.tracker_pending     complete, but the tracker does not name it yet
//   iter_0000100/.metadata.removed    being removed
//   .iter_0000100.removed             the same, when only the empty folder is left
//   .latest_….txt.PID.tmp             a tracker being written

inline constexpr const char* kTracker = "latest_checkpointed_iteration.txt";

// Finishes the saves that had become complete, and removes everything else that saves have left.
void settle_unfinished(const std::string& root);
bool is_unfinished(std::string_view name);  // of a file or folder in the root
bool has_interrupted_save(const std::string& root);

// Makes the tracker name the iteration.
void name_as_latest(const std::string& root, std::int64_t iteration);

}  // namespace braid
