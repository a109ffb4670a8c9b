// braid data draw and prepare: make data sets, of drawn pictures or of the shards of a folder.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/data_call.h"
#include "data/draw/data_set.h"
#include "data/shards/data_set.h"
#include "data/shards/prepare.h"
#include "data/shards/shard.h"
#include "run/output_files.h"

namespace braid {
namespace {

struct PrepareCommand {
  PrepareRequest request{};
  std::vector<std::string> ratios{}, patterns{}, fields{};
};

// "name:value"
std::pair<std::string, std::string> cut_at(const std::string& text, char separator, const char* option) {
  const std::size_t at = text.find(separator);
  if (at == 0 || at == text.npos)
    throw ConfigError({fmt::format("{} has no name before a '{}'", in_quotes(text), separator), option,
                       "see `braid data prepare --help`"});
  return {text.substr(0, at), text.substr(at + 1)};
}

PrepareRequest request_of(const PrepareCommand& command) {
  PrepareRequest request = command.request;
  for (const std::string& text : command.ratios) {
    const auto [name, value] = cut_at(text, ':', "--split");
    const auto ratio = parse_double(value);
    if (!ratio)
      throw ConfigError({fmt::format("{} is not a number", in_quotes(value)), "--split", "write train:0.9,val:0.1"});
    request.ratios.emplace_back(name, *ratio);
  }
  for (const std::string& text : command.patterns) request.patterns.push_back(cut_at(text, ':', "--split-parts"));
  for (const std::string& text : command.fields) request.field_map.push_back(cut_at(text, '=', "--field-map"));
  return request;
}

// Paths that are missing or no data sets are refused later.
void check_writable(const std::string& path) {
  const bool is_lines = path.ends_with(".jsonl");
  std::error_code ignored;
  if (!is_lines && !std::filesystem::is_directory(path, ignored)) return;
  const WrittenPath output = is_lines ? WrittenPath{"PATH", index_path(path), WrittenPath::File}
                                      : WrittenPath{"PATH", path, WrittenPath::Folder};
  require_writable({output});
}

void show_ratios(const std::vector<std::pair<std::string, double>>& ratios) {
  double sum = 0;
  for (const auto& [name, ratio] : ratios) sum += ratio;
  if (ratios.empty() || std::abs(sum - 1) < 1e-6) return;
  std::vector<std::string> shares;
  for (const auto& [name, ratio] : ratios) shares.push_back(fmt::format("{} {:.3g}", in_quotes(name), ratio / sum));
  fmt::print("note: the ratios add up to {:g}, so the shares are {}\n", sum, fmt::join(shares, ", "));
}

// "'a', 'b', 'c' and 7 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> shown;
  for (const std::string& name : names)
    if (shown.size() < kMost) shown.push_back(in_quotes(name));
  const std::string text = joined(shown, ", ");
  return names.size() > kMost ? fmt::format("{} and {} more", text, names.size() - kMost) : text;
}

// Each split with a ratio gets a shard if there are as many shards.
void show_splits(const Prepared& prepared, const decltype(PrepareRequest::ratios)& ratios) {
  const auto unwanted =
      std::count_if(ratios.begin(), ratios.end(), [](const auto& split) { return split.second == 0; });
  const std::int64_t needed = std::ssize(prepared.splits) - unwanted;
  std::vector<std::vector<std::string>> rows;
  for (const PreparedSplit& split : prepared.splits)
    rows.push_back({split.name, std::to_string(split.shards), std::to_string(split.samples)});
  fmt::print("{}", format_table({"split", "shards", "samples"}, rows));
  for (const PreparedSplit& split : prepared.splits)
    if (split.shards == 0)
      fmt::print(
          stderr,
          "braid: WARNING: the split {} has 0 of {}, so it cannot be used: splits consist of whole shards; write at "
          "least {} shards, or give it a larger ratio\n",
          in_quotes(split.name), counted(prepared.shards - prepared.excluded_shards, "shard"), needed);
  std::vector<std::string> excluded;
  if (prepared.excluded_shards > 0) excluded.push_back(counted(prepared.excluded_shards, "shard"));
  if (prepared.excluded_samples > 0) excluded.push_back(counted(prepared.excluded_samples, "sample"));
  if (!excluded.empty()) fmt::print("note: the splits exclude {}\n", fmt::join(excluded, " and "));
  if (const auto& unused = prepared.unused_shards; !unused.empty())
    fmt::print("note: {} {} to no split: {}\n", counted(std::ssize(unused), "shard"),
               unused.size() == 1 ? "belongs" : "belong", some_of(unused));
}

void prepare(const PrepareCommand& command) {
  PrepareRequest request = request_of(command);
  check_writable(request.path);
  WorkStatus status;
  request.progress = [&](std::int64_t done, std::int64_t total) {
    status.show("indexing shards", static_cast<double>(done) / static_cast<double>(total));
  };
  const Prepared prepared = prepare_data_set(request);
  status.clear();
  fmt::print("{} in {}; parts: {}\n", counted(prepared.samples, "sample"), counted(prepared.shards, "shard"),
             visible_text(joined(prepared.parts, ", ")));
  print_warnings(prepared.warnings);
  if (prepared.splits.empty()) return;
  show_ratios(request.ratios);
  show_splits(prepared, request.ratios);
  if (prepared.kept_splits)
    fmt::print("note: the splits were there already and are unchanged; --split or --split-parts replaces them\n");
  if (prepared.kept_dataset_yaml) fmt::print("note: dataset.yaml was there already and is unchanged\n");
  if (!writes_key_index())
    fmt::print("note: this braid was built without SQLite, so there is no index.sqlite for look-ups by key\n");
}

void draw(const DrawRequest& request) {
  require_writable({{"FOLDER", request.folder, WrittenPath::Folder}});
  const Drawn drawn = draw_data_set(request);
  fmt::print("drew {} ({}) in {}, {}, in {}\n", counted(drawn.samples, "sample"), fmt::join(drawn.tasks, ", "),
             counted(drawn.shards, "shard"), readable_bytes(drawn.bytes), request.folder);
}

}  // namespace

Command data_draw_command() {
  const auto o = std::make_shared<DrawRequest>();
  return {.name = "draw",
          .help = "Draw pictures with questions and answers, as a data set to train on",
          .options = {{"folder", &o->folder, "folder to write: new, or empty", kRequired},
                      {"--samples", &o->train, "samples of the split train", kDefaultShown},
                      {"--val", &o->val, "samples of the split val", kDefaultShown},
                      {"--per-shard", &o->per_shard, "samples per tar file", kDefaultShown},
                      {"--seed", &o->seed, "the same seed draws the same samples",
                       Rules{.check = WholeRange{0, kLargestSeed}, .shows_default = true}},
                      {"--tasks", &o->tasks, "kinds of samples, separated by commas; default: all",
                       Rules{.delimiter = ','}}},
          .footer = "The folder also gets a tokenizer that has a token for each word of the questions and answers.",
          .run = [o](Call&) { draw(*o); }};
}

Command data_prepare_command() {
  const auto o = std::make_shared<PrepareCommand>();
  PrepareRequest& request = o->request;
  return {
      .name = "prepare",
      .help = "Index the shards of a data set and split them",
      .options = {{"path", &request.path, "a folder of .tar files, or a .jsonl file", kRequired},
                  {"--split", &o->ratios,
                   "splits and their share of the shards, relative to the sum of all: train:0.9,val:0.1 (default: "
                   "those there are, or train:1)",
                   Rules{.delimiter = ','}},
                  {"--split-parts", &o->patterns,
                   "a split and a regular expression for its shards: 'train:part_[0-8].*'; may be repeated"},
                  {"--shuffle-tars", &request.shuffle, "shuffle the shards before --split divides them"},
                  {"--sample-type", &request.sample_type,
                   fmt::format("Energon's class for the samples: {} (default: crude samples)", sample_type_names())},
                  {"--field-map", &o->fields, "a field of the sample type and its part: image=jpg; may be repeated"},
                  {"--force", &request.force,
                   "prepare it again; keeps the splits unless --split or --split-parts is given"}},
      .footer =
          "Writes an index beside each shard, and .nv-meta with counts, splits and the kind of samples. Energon reads "
          "it too.\n"
          "Example:\n"
          "  braid data prepare images --split train:0.9,val:0.1 --sample-type CaptioningSample --field-map image=jpg "
          "--field-map caption=json[text]",
      .run = [o](Call&) { prepare(*o); }};
}

}  // namespace braid
