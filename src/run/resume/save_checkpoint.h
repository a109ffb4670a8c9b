// Saves checkpoints while the run continues: every rank copies what it has to write, and a background thread writes it
// to disk. One rank, the publisher, publishes the checkpoint when all ranks have written their shards. Until then the
// previous checkpoint is the latest, and it stays the latest if a rank dies.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ckpt/save_lock.h"
#include "run/resume/checkpoint_config.h"
#include "run/resume/common_state.h"
#include "run/resume/training_state.h"

namespace braid {

class World;

class CheckpointSaver {
 public:
  using Say = std::function<void(const std::string& text)>;  // only the publisher's is called

  // All arguments must outlive the saver. The publisher takes the folder's lock unless the launcher holds it, cleans up
  // after killed saves, and refuses a folder with checkpoints that this run does not resume from.
  CheckpointSaver(const CheckpointConfig& config, Training& training, World& world, int publisher, Say say,
                  const JobIdentity& job = {}, const std::string& held_lock = "");
  ~CheckpointSaver();  // abandons an unfinished save

  // The run resumes from this iteration of the folder, which becomes the latest: a newer one may be damaged.
  void resumed_from(std::int64_t iteration);
  // Collective. Waits for the previous save if it is still being written. A write error is thrown here, in check() or
  // in finish(), on the rank that had it.
  void save(const CommonState& common, std::int64_t seed);
  // Reports a save that has completed.
  void check();
  // Collective: waits until the last save is on disk.
  void finish();

 private:
  std::vector<KeyedTensor> own_tensors() const;
  std::vector<std::pair<std::string, PickleValue>> own_objects(const CommonState& common, std::int64_t seed) const;
  void wait_for_all(const std::string& what);
  void begin(std::int64_t iteration);
  void remove_old();
  void say_saved(std::int64_t iteration, const Saved& saved);

  const CheckpointConfig config_;
  Training& training_;
  World& world_;
  const int publisher_;
  const Say say_;
  const std::vector<StoredSet> sets_;
  const ShardWriters writers_;
  std::optional<SaveLock> lock_;  // on the publisher
  std::chrono::steady_clock::time_point start_{};
  std::unique_ptr<SaveJob> job_;
};

}  // namespace braid
