#include "data/draw/data_set.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/strings.h"
#include "data/draw/scene.h"
#include "data/image/encode_png.h"
#include "data/shards/prepare.h"
#include "data/shards/tar.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

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
  nlohmann::ordered_json turns = nlohmann::ordered_json::array();
  const std::string asked = (sample.picture ? "<image>\n" : "") + sample.question;
  turns.push_back({{"role", "user"}, {"content", asked.empty() ? " " : asked}});
  turns.push_back({{"role", "assistant"}, {"content", sample.answer}});
  return nlohmann::ordered_json{{"task", sample.task}, {"conversations", turns}}.dump();
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
  std::optional<Font> font;
  if (const std::string path = find_font(); !path.empty() && can_draw_letters()) font.emplace(path);
  Drawn drawn = {.tasks = tasks_of(request, font.has_value())};
  fs::create_directories(request.folder);
  write_file(mark, "");

  std::uint64_t number = 0;
  for (const auto& [split, samples] :
       {std::pair<std::string, std::int64_t>{"train", request.train}, {"val", request.val}})
    for (std::int64_t begin = 0; begin < samples; begin += request.per_shard) {
      TarWriter tar;
      for (std::int64_t i = begin; i < std::min(samples, begin + request.per_shard); ++i, ++number, ++drawn.samples) {
        const DrawnSample sample = draw_sample(request.seed, number, drawn.tasks, font ? &*font : nullptr);
        const std::string key = fmt::format("{:07d}", number);
        if (sample.picture) tar.add(key + ".png", encode_png(*sample.picture));
        tar.add(key + ".json", record_of(sample));
      }
      const std::string archive = tar.finish();
      drawn.bytes += std::ssize(archive);
      write_file(fmt::format("{}/{}_{:04d}.tar", request.folder, split, drawn.shards++), archive);
    }
  fs::create_directories(request.folder + "/tokenizer");
  write_file(request.folder + "/tokenizer/tokenizer.json", drawing_tokenizer(drawing_words()));
  const nlohmann::ordered_json settings = {
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

}  // namespace braid
