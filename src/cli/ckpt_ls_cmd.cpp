// braid ckpt ls and show: what is in a checkpoint.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ctime>
#include <memory>

#include "base/strings.h"
#include "base/utf8.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/checkpoint_tools.h"
#include "cli/ckpt_commands.h"
#include "plan/param_spec.h"
#include "plan/show.h"
#include "run/stored_run.h"

namespace braid {
namespace {

using Json = nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;

struct LsOptions {
  std::string path, filter;
  std::optional<std::int64_t> iteration;
  bool keys = false, json = false;
};

// "2026-11-15 09:40:29"
std::string time_text(std::time_t time) {
  std::tm local{};
  ::localtime_r(&time, &local);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local)};
}

// A number with digit groups: "1 234 567".
std::string count_text(std::int64_t count) {
  std::string text = std::to_string(count);
  for (std::ptrdiff_t at = std::ssize(text) - 3; at > 0; at -= 3) text.insert(static_cast<std::size_t>(at), " ");
  return text;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return ranks.empty() ? "-" : fmt::format("{} ({})", ranks.size(), fold_ranks(ranks));
}

// A folder whose tracker cannot be read can still be listed.
std::optional<std::int64_t> latest_if_known(const std::string& root) {
  try {
    return latest_iteration(root);
  } catch (const DataError& e) {
    fmt::print(stderr, "braid: {}\n", visible_text(e.what()));
    return std::nullopt;
  }
}

void list_root(const LsOptions& options) {
  const auto latest = latest_if_known(options.path);
  Rows rows;
  Json json = Json::array();
  for (const std::int64_t iteration : iterations_in(options.path)) {
    const IterationFiles files = files_of(iteration_folder(options.path, iteration));
    rows.push_back({std::to_string(iteration), readable_bytes(files.bytes), std::to_string(files.count),
                    time_text(files.saved_at), ranks_text(files.writers), iteration == latest ? "latest" : ""});
    json.push_back({{"iteration", iteration},
                    {"path", iteration_folder(options.path, iteration)},
                    {"bytes", files.bytes},
                    {"files", files.count},
                    {"saved_at", files.saved_at},
                    {"writers", files.writers},
                    {"latest", iteration == latest}});
  }
  if (options.json)
    print_json(json);
  else
    print_text(format_table({"iteration", "size", "files", "saved", "written by ranks", ""}, rows));
}

std::vector<std::string> dtype_names(const KeyGroup& group) {
  std::vector<std::string> names;
  for (const StoredDtype dtype : group.dtypes) names.push_back(name_of(dtype));
  return names;
}

std::int64_t object_bytes(const DistMetadata& metadata) {
  std::int64_t bytes = 0;
  for (const auto& [key, part] : metadata.objects) bytes += part.length;
  return bytes;
}

void print_facts(const DistCheckpoint& checkpoint, const KnownRun& known) {
  const IterationFiles files = files_of(checkpoint.folder());
  Rows facts;
  if (known.run) {
    facts.push_back({"iteration", std::to_string(known.run->position.iteration)});
    facts.push_back({"consumed samples", count_text(known.run->position.consumed_samples)});
  }
  if (known.recipe) {
    const Topology topology(known.recipe->topology, workload_of(*known.recipe));
    facts.push_back({"model", fmt::format("{}, {}", known.recipe->model.provider, known.recipe->model.dtype)});
    facts.push_back({"layout", fmt::format("{}: {}", counted(topology.world_size(), "rank"), topology_line(topology))});
  } else {
    facts.push_back({"layout", fmt::format("unknown: {}", known.why_no_recipe)});
  }
  facts.push_back({"saved", fmt::format("{} by rank{} {}", time_text(files.saved_at),
                                        files.writers.size() == 1 ? "" : "s", fold_ranks(files.writers))});
  facts.push_back({"files", fmt::format("{}, {}, {}", files.count, readable_bytes(files.bytes),
                                        checkpoint.has_checksums() ? "with checksums" : "no checksums")});
  print_text(format_table({checkpoint.folder()}, {}) + "\n");
  for (const auto& fact : facts) print_text(fmt::format("{:<18}{}\n", fact[0], fact[1]));
  fmt::print("\n");
}

void print_groups(const DistMetadata& metadata, const std::vector<KeyGroup>& groups) {
  Rows rows;
  for (const KeyGroup& group : groups)
    rows.push_back({group.name, std::to_string(group.tensors), count_text(group.elements),
                    joined(dtype_names(group), ", "), readable_bytes(group.bytes)});
  if (!metadata.objects.empty())
    rows.push_back(
        {"objects", std::to_string(metadata.objects.size()), "", "", readable_bytes(object_bytes(metadata))});
  print_text(format_table({"group", "tensors", "elements", "dtype", "bytes"}, rows));
}

bool matches(const std::string& key, const LsOptions& options) { return key.find(options.filter) != std::string::npos; }

void print_keys(const DistMetadata& metadata, const LsOptions& options) {
  Rows rows;
  for (const auto& [key, tensor] : metadata.tensors)
    if (matches(key, options))
      rows.push_back({name_of(tensor.dtype), shape_text(tensor.shape), std::to_string(tensor.chunks.size()),
                      readable_bytes(bytes_of(tensor)), key});
  for (const auto& [key, part] : metadata.objects)
    if (matches(key, options)) rows.push_back({"object", "", "", readable_bytes(part.length), key});
  if (rows.empty())
    throw ConfigError(
        {fmt::format("no key contains '{}'", options.filter), "command line", "leave it out to see all of them"});
  print_text(format_table({"dtype", "shape", "chunks", "bytes", "key"}, rows));
}

Json json_of(const DistCheckpoint& checkpoint, const KnownRun& known, const LsOptions& options) {
  const DistMetadata& metadata = checkpoint.metadata();
  const IterationFiles files = files_of(checkpoint.folder());
  Json json = {
      {"path", checkpoint.folder()},       {"bytes", files.bytes},     {"files", files.count},
      {"saved_at", files.saved_at},        {"writers", files.writers}, {"checksums", checkpoint.has_checksums()},
      {"objects", metadata.objects.size()}};
  if (known.run) {
    json["iteration"] = known.run->position.iteration;
    json["consumed_samples"] = known.run->position.consumed_samples;
  }
  if (known.recipe) {
    json["provider"] = known.recipe->model.provider;
    json["recipe"] = known.run->recipe;
  }
  for (const KeyGroup& group : key_groups(metadata, known.recipe))
    json["groups"].push_back({{"name", group.name},
                              {"tensors", group.tensors},
                              {"elements", group.elements},
                              {"bytes", group.bytes},
                              {"dtypes", dtype_names(group)}});
  if (!options.keys) return json;
  json["tensors"] = Json::array();
  for (const auto& [key, tensor] : metadata.tensors)
    if (matches(key, options))
      json["tensors"].push_back({{"key", key},
                                 {"dtype", name_of(tensor.dtype)},
                                 {"shape", tensor.shape},
                                 {"chunks", tensor.chunks.size()},
                                 {"bytes", bytes_of(tensor)}});
  return json;
}

void list(LsOptions options) {
  options.keys = options.keys || !options.filter.empty();
  if (!options.iteration && !options.keys && !iterations_in(options.path).empty()) return list_root(options);
  const DistCheckpoint checkpoint(chosen_iteration(options.path, options.iteration));
  const KnownRun known = known_run(checkpoint);
  if (options.json) {
    print_json(json_of(checkpoint, known, options));
  } else if (options.keys) {
    print_keys(checkpoint.metadata(), options);
  } else {
    print_facts(checkpoint, known);
    print_groups(checkpoint.metadata(), key_groups(checkpoint.metadata(), known.recipe));
  }
}

[[noreturn]] void refuse_key(const DistMetadata& metadata, const std::string& key) {
  std::vector<std::string> keys = {"common"}, similar;
  for (const auto& [name, tensor] : metadata.tensors) keys.push_back(name);
  for (const auto& [name, part] : metadata.objects) keys.push_back(name);
  for (const std::string& name : keys)
    if (name.find(key) != std::string::npos && similar.size() < 3) similar.push_back(in_quotes(name));
  const auto guess = nearest(key, keys);
  const std::string fix = guess             ? fmt::format("did you mean '{}'?", *guess)
                          : similar.empty() ? "see `braid ckpt ls PATH --keys`"
                                            : fmt::format("did you mean one of {}?", fmt::join(similar, ", "));
  throw ConfigError({fmt::format("there is no tensor or object '{}'", key), "command line", fix});
}

void show_tensor(DistCheckpoint& checkpoint, const std::string& key, const DistTensor& tensor) {
  constexpr std::int64_t kValues = 8;
  constexpr std::size_t kChunks = 32;
  print_text(fmt::format("{}\n{} {}, {} elements, {}\n\n", key, name_of(tensor.dtype), shape_text(tensor.shape),
                         count_text(num_elements(tensor.shape)), readable_bytes(bytes_of(tensor))));
  Rows rows;
  for (const StoredChunk& chunk : tensor.chunks)
    if (rows.size() < kChunks)
      rows.push_back(
          {shape_text(chunk.begin), shape_text(chunk.size), chunk.part.file, std::to_string(chunk.part.offset)});
  print_text(format_table({"chunk from", "of", "file", "at byte"}, rows));
  if (tensor.chunks.size() > kChunks) fmt::print("and {} more\n", tensor.chunks.size() - kChunks);
  const TensorStatistics numbers = statistics_of(checkpoint, key, kValues);
  fmt::print("\nmin {:.6g}  max {:.6g}  mean {:.6g}  L2 {:.6g}\n", numbers.least, numbers.largest, numbers.mean,
             numbers.l2);
  if (numbers.nans + numbers.infinities > 0)
    fmt::print("{} NaN, {} infinite: not included above\n", numbers.nans, numbers.infinities);
  std::vector<std::string> values;
  for (const double value : numbers.first) values.push_back(fmt::format("{:.6g}", value));
  fmt::print("{}{}\n", fmt::join(values, " "), num_elements(tensor.shape) > kValues ? " ..." : "");
}

void show(const LsOptions& options) {
  constexpr std::size_t kMost = 100'000;
  DistCheckpoint checkpoint(chosen_iteration(options.path, options.iteration));
  const DistMetadata& metadata = checkpoint.metadata();
  const std::string& key = options.filter;
  if (const auto tensor = metadata.tensors.find(key); tensor != metadata.tensors.end())
    return show_tensor(checkpoint, key, tensor->second);
  if (metadata.objects.count(key)) return print_text(to_text(checkpoint.read_object(key), kMost) + "\n");
  if (key != "common") refuse_key(metadata, key);
  if (!checkpoint.has_common()) throw DataError(fmt::format("{} has no common.pt", checkpoint.folder()));
  const PickleValue common = checkpoint.common();
  const auto* entries = as<PickleDict>(common);
  if (!entries) return print_text(to_text(common, kMost) + "\n");
  // Strings such as the recipe are printed as text; other values in short form.
  for (const auto& [name, value] : entries->items)
    if (as<std::string>(name) && *as<std::string>(name) != "args")
      print_text(fmt::format("{}: {}\n", *as<std::string>(name), to_text(value, kMost)));
  const PickleValue args = find(common, "args");
  if (!args) return;
  const auto* values = as<PickleDict>(args);
  if (!values) return print_text(fmt::format("args: {}\n", to_text(args, kMost)));
  for (const auto& [name, value] : values->items)
    print_text(fmt::format("args.{}: {}\n", as<std::string>(name) ? *as<std::string>(name) : to_text(name),
                           as<std::string>(value) ? "\n" + *as<std::string>(value) : to_text(value, kMost)));
}

}  // namespace

Command ckpt_ls_command() {
  const auto o = std::make_shared<LsOptions>();
  return {.name = "ls",
          .help = "List the iterations of a folder, or the contents of one",
          .options = {{"path", &o->path, "folder of checkpoints, or of one iteration", kRequired},
                      {"filter", &o->filter, "with --keys: only keys that contain this"},
                      {"--iteration", &o->iteration, "show this iteration of the folder"},
                      {"--keys", &o->keys, "list every tensor and object (of a folder: of its latest iteration)"},
                      {"--json", &o->json, "print JSON, for programs"}},
          .run = [o](Call&) { list(*o); }};
}

Command ckpt_show_command() {
  const auto o = std::make_shared<LsOptions>();
  return {.name = "show",
          .help = "Show one tensor or object of a checkpoint, or `common`",
          .options = {{"path", &o->path, kCheckpointHelp, kRequired},
                      {"key", &o->filter, "key of a tensor or an object; `common` shows common.pt", kRequired},
                      {"--iteration", &o->iteration, "show this iteration of the folder"}},
          .run = [o](Call&) { show(*o); }};
}

}  // namespace braid
