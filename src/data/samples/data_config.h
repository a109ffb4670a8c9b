// Which data set a run reads and how its samples become sequences of tokens: the recipe's `data` section, without mock
// data.
#pragma once

#include "base/config.h"
#include "base/error.h"
#include "data/image/image.h"

namespace braid {

// Where the contents of a sample are, for data sets whose dataset.yaml does not say it: expressions as in its field_map
// ("json[conversations]", "jpg,png").
struct SampleFields {
  std::string images{};        // pictures, or JSON lists of the names of parts that are pictures
  std::string conversation{};  // a JSON list of turns
  std::string question{}, answer{}, caption{}, text{};
  std::string tools{};  // a JSON list of what the assistant may call
};

enum class PictureFit { Dynamic, Tiles, Square };
constexpr auto choice_names(PictureFit) { return std::array{"dynamic", "tiles", "square"}; }

struct PictureConfig {
  PictureFit fit = PictureFit::Dynamic;
  int min_patches = 0, max_patches = 0;  // dynamic: per picture; 0: no limit
  int min_side = 0;                      // dynamic: pixels
  int tile_side = 512, max_tiles = 12;   // tiles: pixels; most tiles per picture
  bool thumbnail = false;                // tiles: one more with the whole picture
  ResizeFilter filter = ResizeFilter::Bicubic;
  bool orient = true;          // turn pictures as their EXIF data says
  bool scaled_decode = false;  // decode a JPEG at a smaller scale if it will shrink anyway
  bool blank = false;          // grey pixels only
};

enum class OverLong { Drop, Truncate };
constexpr auto choice_names(OverLong) { return std::array{"drop", "truncate"}; }

struct DataConfig {
  std::string path{};  // a data set, a metadataset, or prefixes of Megatron's text; empty: mock data
  std::string split = "train", valid_split = "val";
  std::string document_split = "969,30,1";  // shares of Megatron's text that are in train, valid and test
  std::string tokenizer{};                  // a file or a folder
  std::string prompt_format{};              // of conversations
  std::string image_tag = "none";           // text around a picture: none, nvlm or internvl
  std::string system{};                     // the system turn of conversations that have none
  std::string date{};                       // that chat templates write, YYYY-MM-DD; empty: today's
  bool append_eod = true;                   // plain text ends with the tokenizer's EOS token
  SampleFields fields{};
  PictureConfig pictures{};
  OverLong over_long = OverLong::Drop;  // samples that are longer than a sequence
  std::int64_t max_bad_samples = 100;   // a rank ends the run when it has met more
};

enum class Packing { Greedy, Even };
constexpr auto choice_names(Packing) { return std::array{"greedy", "even"}; }

enum class Readers { Shared, PerReplica };
constexpr auto choice_names(Readers) { return std::array{"shared", "per_replica"}; }

enum class Balance { None, Cost };
constexpr auto choice_names(Balance) { return std::array{"none", "cost"}; }

// How a data set is read.
struct LoaderConfig {
  std::optional<int> lanes{};           // independent streams of samples; default: the language model's dp
  int num_workers = 1;                  // streams that each lane interleaves; 0 means 1
  std::optional<int> packing_buffer{};  // samples per worker to choose from; none or 0: one sample per sequence
  Packing packing = Packing::Greedy;
  int shuffle_buffer = 0;                         // samples per worker; below 2: none
  std::optional<int> max_samples_per_sequence{};  // read in a row from a shard; none: a whole shard
  int threads = 2;                                // per reader; do not change the samples
  Readers readers = Readers::Shared;
  Balance balance = Balance::None;        // see batches/sample_sizes.h
  std::optional<int> balance_replicas{};  // that exchange samples; default: see describe()
};

void describe(Fields& fields, SampleFields& config);
void describe(Fields& fields, PictureConfig& config);
void describe(Fields& fields, DataConfig& config);
void describe(Fields& fields, LoaderConfig& config);

// Midnight of `date` in local time, or now if it is empty; nothing if it is not a date.
std::optional<std::tm> time_of_date(const std::string& date);

// Problems of the values alone; whether the files exist shows when they are opened.
std::vector<Problem> validate(const DataConfig& config, const std::string& where);
std::vector<Problem> validate(const LoaderConfig& config, const std::string& where);

}  // namespace braid
