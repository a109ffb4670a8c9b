#include "data/samples/data_config.h"
#include "base/strings.h"
#include "data/text/chat.h"

namespace braid {

void describe(Fields& f, SampleFields& c) {
  f.field("images", c.images, "parts that are pictures (jpg,png), or a JSON list of their names (json[images])");
  f.field("conversation", c.conversation, "a JSON list of turns, e.g. json[conversations]");
  f.field("question", c.question, "text of the user's turn; together with answer");
  f.field("answer", c.answer, "text of the assistant's turn");
  f.field("caption", c.caption, "description of the picture");
  f.field("text", c.text, "plain text without turns");
  f.field("tools", c.tools, "a JSON list of tools for the chat template, e.g. json[tools]");
}

void describe(Fields& f, PictureConfig& c) {
  f.choice("fit", c.fit, "sizes of pictures: near their own, cut into tiles, or all equal");
  f.field("min_patches", c.min_patches, "dynamic: enlarge smaller pictures to about this many patches");
  f.field("max_patches", c.max_patches, "dynamic: most patches of a picture; 0: no limit but the sequence");
  f.field("min_side", c.min_side, "dynamic: shortest side in pixels; 0: none");
  f.field("tile_side", c.tile_side, "tiles: pixels per side");
  f.field("max_tiles", c.max_tiles, "tiles: most tiles of a picture");
  f.field("thumbnail", c.thumbnail, "tiles: one more tile shows the whole picture");
  f.choice("filter", c.filter, "how pictures are resized");
  f.field("orient", c.orient, "turn pictures as their EXIF data says");
  f.field("scaled_decode", c.scaled_decode,
          "decode a JPEG at a smaller scale if it will shrink anyway: faster, "
          "not the same pixels");
  f.field("blank", c.blank, "make all pictures grey: what a model can do without seeing them");
}

void describe(Fields& f, DataConfig& c) {
  f.field("path", c.path,
          "a prepared folder, a .jsonl or .bin file, a metadataset's .yaml file, or Megatron's text by PREFIX or "
          "'WEIGHT PREFIX WEIGHT PREFIX'; empty: mock data");
  f.field("split", c.split, "split to train on");
  f.field("valid_split", c.valid_split, "split to evaluate on");
  f.field("document_split", c.document_split,
          "shares of Megatron's text, given by PREFIX, that are in train, valid and test");
  f.field("tokenizer", c.tokenizer, "tokenizer.json, sentencepiece .model, or a folder with one of them");
  f.field("prompt_format", c.prompt_format, "chat format of conversations, e.g. chatml");
  f.choice("image_tag", c.image_tag, {"none", "nvlm", "internvl"}, "text around each picture");
  f.field("system", c.system, "system turn of conversations that have none");
  f.field("date", c.date, "the date that chat templates write, YYYY-MM-DD; empty: today's");
  f.field("append_eod", c.append_eod, "end plain text with the tokenizer's EOS token");
  f.section("fields", c.fields);
  f.section("pictures", c.pictures);
  f.choice("over_long", c.over_long, "what happens to samples longer than a sequence");
  f.field("max_bad_samples", c.max_bad_samples,
          "a rank ends the run when it has met more damaged samples; each counts once");
}

void describe(Fields& f, LoaderConfig& c) {
  f.field("lanes", c.lanes, "independent streams of samples; default: dp of the language model");
  f.field("num_workers", c.num_workers, "streams that each lane interleaves; 0 means 1");
  f.field("packing_buffer", c.packing_buffer,
          "samples per worker to choose from when packing sequences; none or 0: one sample per sequence");
  f.choice("packing", c.packing, "fullest sequences, or sequences of even length");
  f.field("shuffle_buffer", c.shuffle_buffer, "samples per worker that are shuffled; 0: none");
  f.field("max_samples_per_sequence", c.max_samples_per_sequence, "most samples to read in a row from a shard");
  f.field("threads", c.threads, "threads per reader");
  f.choice("readers", c.readers,
           "one reader of an encoder rank for all its language replicas, or one for each; the batches are the same");
  f.choice("balance", c.balance,
           "cost: reorder the samples of a step so that microbatches and replicas have about equal work");
  f.field(
      "balance_replicas", c.balance_replicas,
      "language replicas that exchange samples to balance them, and read those of each other; default: as many as an "
      "encoder replica serves");
}

namespace {

constexpr std::int64_t kMostSide = 65536;        // pixels
constexpr std::int64_t kMostBuffered = 1 << 24;  // samples

void check_range(std::vector<Problem>& problems, const std::string& key, std::int64_t value, std::int64_t least,
                 std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  if (value < least)
    problems.push_back(
        {fmt::format("{}={} must be at least {}", key, value, least), key, fmt::format("use {} or more", least)});
  if (value > most)
    problems.push_back(
        {fmt::format("{}={} must be at most {}", key, value, most), key, fmt::format("use {} or less", most)});
}

}  // namespace

std::optional<std::tm> time_of_date(const std::string& date) {
  if (date.empty()) return local_time();
  std::tm time{};
  const char* end = strptime(date.c_str(), "%Y-%m-%d", &time);  // which also takes fewer digits, and spaces
  if (date.size() != 10 || date.find(' ') != date.npos || !end || *end != '\0') return std::nullopt;
  std::tm real = time;
  real.tm_isdst = -1;
  if (std::mktime(&real) == -1 || real.tm_mday != time.tm_mday) return std::nullopt;  // 30 February
  return real;
}

std::vector<Problem> validate(const DataConfig& config, const std::string& where) {
  std::vector<Problem> problems;
  if (config.tokenizer.empty())
    problems.push_back({"a data set needs a tokenizer", where + ".tokenizer",
                        "give a tokenizer.json, a sentencepiece .model, or a folder with one of them"});
  if (config.prompt_format.empty())
    problems.push_back({"a data set needs a chat format for its conversations", where + ".prompt_format",
                        fmt::format("use one of {}", fmt::join(chat_format_names(), ", "))});
  if (!time_of_date(config.date))
    problems.push_back({fmt::format("{}.date={} is not a date", where, in_quotes(config.date)), where + ".date",
                        "write it as YYYY-MM-DD, for example 2025-01-31"});
  const PictureConfig& pictures = config.pictures;
  check_range(problems, where + ".pictures.min_patches", pictures.min_patches, 0);
  check_range(problems, where + ".pictures.max_patches", pictures.max_patches, 0);
  check_range(problems, where + ".pictures.min_side", pictures.min_side, 0, kMostSide);
  check_range(problems, where + ".pictures.tile_side", pictures.tile_side, 1, kMostSide);
  check_range(problems, where + ".pictures.max_tiles", pictures.max_tiles, 1, 1024);
  if (pictures.max_patches > 0 && pictures.max_patches < pictures.min_patches)
    problems.push_back(
        {fmt::format("max_patches={} is less than min_patches={}", pictures.max_patches, pictures.min_patches),
         where + ".pictures.max_patches", "use a larger max_patches, or 0 for no limit"});
  check_range(problems, where + ".max_bad_samples", config.max_bad_samples, 0);
  const SampleFields& fields = config.fields;
  if (fields.question.empty() != fields.answer.empty())
    problems.push_back({"question and answer belong together", where + ".fields", "give both or neither"});
  return problems;
}

std::vector<Problem> validate(const LoaderConfig& config, const std::string& where) {
  std::vector<Problem> problems;
  check_range(problems, where + ".lanes", config.lanes.value_or(1), 1);
  check_range(problems, where + ".num_workers", config.num_workers, 0, 1 << 20);
  check_range(problems, where + ".packing_buffer", config.packing_buffer.value_or(0), 0, kMostBuffered);
  check_range(problems, where + ".shuffle_buffer", config.shuffle_buffer, 0, kMostBuffered);
  check_range(problems, where + ".max_samples_per_sequence", config.max_samples_per_sequence.value_or(1), 1);
  check_range(problems, where + ".threads", config.threads, 1, 1024);
  check_range(problems, where + ".balance_replicas", config.balance_replicas.value_or(1), 1);
  return problems;
}

}  // namespace braid
