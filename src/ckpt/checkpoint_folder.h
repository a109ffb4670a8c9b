// A folder of checkpoints, one below it per iteration, and how one comes to be: written beside the others under a
// name that nobody loads, brought to disk, renamed, and only then named as the latest.
//
//   <root>/latest_checkpointed_iteration.txt
//   <root>/iter_0000100/          a complete one
//   <root>/.iter_0000200.partial/ one being written, or left by a run that died
//
// Saving one: hold the root's SaveLock; begin_iteration() on one rank; on every writer, a DistWriter in the partial
// folder and then hand_in(); on one rank again, publish() when all have handed in.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "formats/pickle.h"

namespace braid {

class DistWriter;

std::string iteration_folder(const std::string& root, std::int64_t iteration);
std::optional<std::int64_t> iteration_of(const std::string& name);  // of "iter_0000100", as iteration_folder() names it
std::string partial_folder(const std::string& root, std::int64_t iteration);

// What the tracker says, or without one the newest complete iteration; nothing when there is no checkpoint at all.
// DataError when the tracker does not hold a number.
std::optional<std::int64_t> read_tracker(const std::string& root);
// The same, and the iteration is there.
std::optional<std::int64_t> latest_iteration(const std::string& root);
// Ascending. Those that are not complete have no index: no save leaves them so.
enum class Complete { Yes, OrNot };
std::vector<std::int64_t> iterations_in(const std::string& root, Complete complete = Complete::Yes);

// What lies in an iteration's folder, by a look at its names.
struct IterationFiles {
  int count = 0;
  std::int64_t bytes = 0;
  std::vector<int> writers{};  // ascending: the ranks that wrote .distcp files
  std::time_t saved_at = 0;
};
IterationFiles files_of(const std::string& folder);

// The iteration's folder that `path` means: itself, or of a root the latest; nothing when there is no checkpoint.
// DataError when the tracker is wrong; with a fallback, the newest complete iteration is taken then.
std::optional<std::string> find_iteration(const std::string& path, bool falls_back = false);
// The same without a fallback. DataError when there is none.
std::string resolve_iteration(const std::string& path);

// Makes the partial folder, and the root where it is missing. What earlier saves left unfinished is settled first: a
// disk may have no room for it (ckpt/unfinished_saves.h).
void begin_iteration(const std::string& root, std::int64_t iteration);

// After DistWriter::finish(): tells publish() what the writer has written.
void hand_in(const std::string& partial, int writer, const DistWriter& written);
bool handed_in(const std::string& partial, int writer);

// The tracker names it afterwards; that of a Guest, who converts checkpoints, only if it is the newest.
enum class Saver { Run, Guest };
struct Published {
  std::int64_t bytes = 0;
};
Published publish(const std::string& root, std::int64_t iteration, int writers, const PickleValue& common,
                  Saver saver = Saver::Run);
Published publish(const std::string& root, std::int64_t iteration, int writers, const std::string& common_pt,
                  Saver saver = Saver::Run);

// Removes all but the newest `keep` iterations.
void remove_old_iterations(const std::string& root, int keep);

}  // namespace braid
