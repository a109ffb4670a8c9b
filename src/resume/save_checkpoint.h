// Saves checkpoints of a run while it goes on: every rank copies what it is to write, and a thread of its own brings
// that to disk. One rank, the publisher, puts the parts together when all have handed theirs in. Until then the
// checkpoint before is the latest, and stays so if anybody dies.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ckpt/save_lock.h"
#include "resume/checkpoint_config.h"
#include "resume/common_state.h"
#include "resume/training_state.h"

namespace braid {

class World;

class CheckpointSaver {
 public:
  using Say = std::function<void(const std::string& text)>;  // only the publisher's is called

  // Everything outlives the saver. The publisher takes the folder's lock where the launcher does not hold it, settles
  // what killed saves have left there, and refuses a folder with checkpoints that this run does not go on from.
  CheckpointSaver(const CheckpointConfig& config, Training& training, World& world, int publisher, Say say,
                  const JobIdentity& job = {}, const std::string& held_lock = "");
  ~CheckpointSaver();  // gives up what is not finished

  // The run goes on from this iteration of the folder, which becomes the latest: another one may have been damaged.
  void resumed_from(std::int64_t iteration);
  // Collective. Waits for the save before where that is still being written. An error in writing shows here, in check()
  // or in finish() of the rank that had it.
  void save(const CommonState& common, std::int64_t seed);
  // Says when a save is complete.
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
  std::optional<SaveLock> lock_;  // the publisher's
  std::chrono::steady_clock::time_point start_{};
  std::unique_ptr<SaveJob> job_;
};

}  // namespace braid
