#include "data/draw/data_set.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "data/draw/scene.h"
#include "data/image/decode.h"
#include "data/shards/prepare.h"
#include "data/shards/tar.h"
#include "data/text/unicode.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostSamples = 100'000'000;

std::vector<std::string> tasks_of(const DrawRequest& request, bool has_font) {
  std::vector<std::string> tasks;
  for (const std::string& task : request.tasks) {
    if (!contains(drawing_tasks(), task))
      throw ConfigError({fmt::format("there is no task '{}'", task), "--tasks",
                         fmt::format("tasks are {}", fmt::join(drawing_tasks(), ", "))});
    if (!contains(tasks, task)) tasks.push_back(task);
  }
  if (tasks.empty())
    for (const std::string& task : drawing_tasks())
      if (has_font || (task != "digit" && task != "word")) tasks.push_back(task);
  return tasks;
}

std::string record_of(const DrawnSample& sample) {
  Json turns = Json::array();
  const std::string asked = (sample.image ? "<image>\n" : "") + sample.question;
  turns.push_back({{"role", "user"}, {"content", asked.empty() ? " " : asked}});
  turns.push_back({{"role", "assistant"}, {"content", sample.answer}});
  return Json{{"task", sample.task}, {"conversations", turns}}.dump();
}

constexpr int kImageId = 511;  // where the tiny models expect it

// By byte: the character that stands for it in byte-level vocabularies.
std::vector<std::string> byte_letters() {
  std::vector<std::string> letters(256);
  for (int byte = 0; byte < 256; ++byte) {
    const char letter = static_cast<char>(byte);
    append_byte_level(letters[static_cast<std::size_t>(byte)], {&letter, 1});
  }
  return letters;
}

Json special(int id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

Drawn draw_data_set(const DrawRequest& request) {
  std::error_code ignored;
  const std::string mark = request.folder + "/" + kUnfinishedMark;
  if (fs::exists(request.folder, ignored) && !fs::is_directory(request.folder, ignored))
    throw ConfigError({fmt::format("'{}' is a file", request.folder), "command line", "give a new folder"});
  if (fs::exists(request.folder, ignored) && !fs::is_empty(request.folder, ignored))
    throw ConfigError({fmt::format("'{}' {}", request.folder,
                                   fs::exists(mark, ignored) ? "has a drawing that was interrupted" : "is not empty"),
                       "command line", "remove the folder, or give a new one"});
  for (const auto& [option, samples] :
       {std::pair("--samples", request.train), {"--val", request.val}, {"--per-shard", request.per_shard}})
    if (samples < 1 || samples > kMostSamples)
      throw ConfigError({fmt::format("{} {} must be from 1 to {}", option, samples, kMostSamples), option,
                         "give another number of samples"});
  const std::unique_ptr<Font> font = usual_font();
  Drawn drawn = {.tasks = tasks_of(request, font != nullptr)};
  fs::create_directories(request.folder);
  write_file(mark, "");

  std::uint64_t number = 0;
  for (const auto& [split, samples] :
       {std::pair<std::string, std::int64_t>{"train", request.train}, {"val", request.val}})
    for (std::int64_t begin = 0; begin < samples; begin += request.per_shard) {
      TarWriter tar;
      for (std::int64_t i = begin; i < std::min(samples, begin + request.per_shard); ++i, ++number, ++drawn.samples) {
        const DrawnSample sample = draw_sample(request.seed, number, drawn.tasks, font.get());
        const std::string key = fmt::format("{:07d}", number);
        if (sample.image) tar.add(key + ".png", encode_png(*sample.image));
        tar.add(key + ".json", record_of(sample));
      }
      const std::string archive = tar.finish();
      drawn.bytes += std::ssize(archive);
      write_file(fmt::format("{}/{}_{:04d}.tar", request.folder, split, drawn.shards++), archive);
    }
  fs::create_directories(request.folder + "/tokenizer");
  write_file(request.folder + "/tokenizer/tokenizer.json", drawing_tokenizer(drawing_words()));
  const Json settings = {
      {"eos_token", "<|im_end|>"},
      {"pad_token", "<pad>"},
      {"chat_template",
       "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
       "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"}};
  write_file(request.folder + "/tokenizer/tokenizer_config.json", settings.dump(1) + "\n");
  prepare_data_set(
      {.path = request.folder, .patterns = {{"train", "train_.*"}, {"val", "val_.*"}}, .finishes_writing = true});
  fs::remove(mark);
  return drawn;
}

// All bytes, and the words as single tokens, which are taken whole (ignore_merges), so it needs no merges.
std::string drawing_tokenizer(const std::vector<std::string>& words) {
  const std::vector<std::string> letters = byte_letters();
  Json vocab = Json::object(), added = Json::array();
  int next = 0;
  for (const char* token : {"<pad>", "<|im_start|>", "<|im_end|>"}) added.push_back(special(next++, token));
  for (const std::string& letter : letters) vocab[letter] = next++;
  const std::string& space = letters[' '];
  for (const std::string& word : words)
    for (const std::string& token : {space + word, word})
      if (!vocab.contains(token)) vocab[token] = next++;
  BRAID_CHECK(next <= kImageId, "{} tokens of words and bytes", next);
  added.push_back(special(kImageId, "<image>"));
  for (const Json& token : added) vocab[token["content"].get<std::string>()] = token["id"];
  Json tokenizer = Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
              "vocab": {}, "merges": []}})");
  tokenizer["added_tokens"] = std::move(added);
  tokenizer["model"]["vocab"] = std::move(vocab);
  return tokenizer.dump(1);
}

}  // namespace braid
