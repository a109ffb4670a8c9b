// Megatron's indexed text as samples of equal length, in the order of its GPTDataset and BlendedDataset.
#pragma once

#include "data/indexed/gpt_order.h"
#include "data/shards/indexed_file.h"
#include "data/shards/lane.h"

namespace braid {

// Whether a path names indexed text by the prefix of its files, or several of them, with or without weights ("0.7 a
// 0.3 b"). One that is itself a file or a prepared folder does not.
bool names_gpt_data(const std::string& path);

// data.path for a process in another folder. In a list, each prefix starts at `folder`.
std::string data_path_from(const std::string& folder, const std::string& path);

struct GptDataOptions {
  std::string path{};        // prefixes, and weights
  std::string shares{};      // of train, valid and test
  std::string split{};       // which of them
  std::int64_t samples = 1;  // that the run needs; the order depends on them
  std::int64_t sequence_length = 0;
  std::int64_t seed = 0;
  std::vector<int> refused{};  // numbers that stand for the input of an encoder
  ReadRetries retries{};
};

// May be used by several threads at once.
class GptData {
 public:
  // Opens the files. ConfigError if some are missing, or have too little text; ReadError if they are damaged.
  explicit GptData(GptDataOptions given);

  std::int64_t samples() const { return samples_; }
  std::size_t texts() const { return texts_.size(); }

  // One token more than the sequence length. Beyond the last sample they repeat. The first call makes the order.
  // DataError for damaged text. A read that the system fails is repeated after a pause, with the files opened again.
  std::vector<int> read(std::int64_t sample) const;

  struct Place {
    std::size_t text = 0;
    std::int64_t sample = 0;  // of the text
  };
  Place place_of(std::int64_t sample) const;
  const GptOrder& order_of(std::size_t text) const;

  // Which sample a run continues with, with all that the order depends on: see lane.h. The same in every layout.
  std::string position(std::int64_t sample) const;
  std::int64_t sample_at(const std::vector<std::string>& positions) const;

 private:
  struct Text {
    std::string prefix;
    std::shared_ptr<const IndexedFile> file;
    std::int64_t first = 0, end = 0;  // sequences
    std::int64_t tokens = 0;
    GptRequest request{};
  };
  struct Order {
    std::vector<GptOrder> texts{};
    BlendOrder blend{};
  };

  Text open_text(const std::string& prefix) const;
  void plan_weighted(const std::vector<double>& weights);
  void plan_unweighted();
  const Order& order() const;
  LaneIdentity make_identity() const;
  std::vector<int> read(const IndexedFile& file, const Place& place) const;

  const GptDataOptions options_;
  std::vector<Text> texts_{};
  std::vector<double> shares_{};  // of the texts; none: there is one, and it is not a blend
  std::int64_t samples_ = 0;
  LaneIdentity identity_{};
  mutable std::once_flag ordered_{};
  mutable Order order_{};
};

}  // namespace braid
