// Checkpoints of a run: its state as tensors, saving it while the run continues, and loading it into any layout.
#pragma once

#include "ckpt/save_job.h"
#include "ckpt/save_lock.h"
#include "run/resume/checkpoint_config.h"
#include "run/resume/stored_state.h"
#include "train/training.h"

namespace braid {

class World;

// --- the state of a run: views of live tensors, each with its key and its box in the stored tensor

struct StateTensor : KeyedTensor {
  bool written_here = false;  // this rank writes the box, which others may also hold
};

// This rank's parameters of these sets. `writers`: which rank writes what several hold; null when only loading.
std::vector<StateTensor> model_state(const MimoModel& model, const std::vector<StoredSet>& sets,
                                     const ShardWriters* writers);

// How optimizer state is stored. FullyReshardable stores it parameter by parameter, so that any layout can load it.
// ByBucket stores the buffers as they are in memory, for the same split of the model (dp may change).
enum class OptimizerFormat { FullyReshardable, ByBucket };

// Main parameters and both moments of the parameters that this rank updates.
std::vector<StateTensor> optimizer_state(const Training& training, const std::vector<StoredSet>& sets,
                                         const ShardWriters* writers, OptimizerFormat format);

// --- saving
//
// Every rank copies what it has to write, and a background thread writes it to disk. One rank, the publisher, publishes
// the checkpoint when all ranks have written their shards. Until then the previous checkpoint is the latest, and it
// stays the latest if a rank dies.

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
  void finish() { wait_for_all("is being written"); }

 private:
  std::vector<KeyedTensor> own_tensors() const;
  std::vector<std::pair<std::string, PickleValue>> own_objects(const CommonState& common, std::int64_t seed) const;
  void wait_for_all(const std::string& what);
  void remove_old();

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

// --- loading

struct LoadedRun {
  bool resumes = false;  // false: it starts with these weights
  RunPosition position{};
  std::optional<std::int64_t> seed{};         // of random numbers; empty: the recipe's
  std::vector<std::string> data_positions{};  // by lane; empty: none was stored
  std::vector<std::string> missing_sets{};    // parameter sets that were not loaded
  std::string initialized_from{};             // as in CommonState
};

// Collective over the world. Resumes, or starts with the weights of weight_sources(). Every rank reads only the tensor
// slices that it holds. DataError if the checkpoint is damaged, or if a tensor of the model is missing or has another
// shape. Returns nothing and changes nothing if there is no checkpoint to load. `say` is called on one rank.
std::optional<LoadedRun> load_checkpoint(const CheckpointConfig& config, Training& training, World& world,
                                         const std::function<void(const std::string& text)>& say);

}  // namespace braid
