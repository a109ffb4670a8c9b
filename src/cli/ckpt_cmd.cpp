// braid ckpt: inspects, verifies and compares checkpoints, and converts models from and to other formats.
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/checkpoint_tools.h"
#include "cli/command.h"
#include "hf/model.h"
#include "plan/param_spec.h"
#include "plan/show.h"
#include "run/stored_run.h"

namespace braid {
namespace {

using Json = nlohmann::json;

// Of ls, show, verify and diff.
struct CkptOptions {
  std::string path, other, key;  // other: the second checkpoint; key: a part of it is enough for ls
  std::optional<std::int64_t> iteration;
  bool keys = false, all = false, json = false;
};

constexpr const char* kCheckpointHelp = "folder of checkpoints (its latest iteration is used), or of one iteration";

// The folder of an iteration: `path` itself, or, in a root folder, the requested iteration or the latest.
std::string chosen_iteration(const std::string& path, std::optional<std::int64_t> iteration) {
  if (!is_folder(path)) throw misuse(fmt::format("there is no folder '{}'", path), "give the folder of a checkpoint");
  const std::vector<std::int64_t> iterations = iterations_in(path);
  if (iterations.empty() && files_of(path).writers.empty() && !find_iteration(path))
    throw misuse(fmt::format("there is no checkpoint in '{}'", path),
                 "give the folder that a run saves to, or one of its iterations, e.g. ckpt/iter_0000100");
  if (!iteration) return resolve_iteration(path);
  const std::string folder = iteration_folder(path, *iteration);
  if (is_folder(folder)) return folder;
  throw ConfigError({fmt::format("there is no {}", folder), "--iteration",
                     iterations.empty() ? "leave it out: this is the folder of one iteration"
                                        : fmt::format("it has {}", fmt::join(iterations, ", "))});
}

// Prints to standard output without terminal control sequences: names and texts in checkpoints may contain anything.
void print_text(std::string_view text) { fmt::print("{}", visible_text(text)); }

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
}

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

void list_root(const CkptOptions& options) {
  std::optional<std::int64_t> latest;
  try {
    latest = latest_iteration(options.path);
  } catch (const DataError& e) {  // a folder whose tracker cannot be read can still be listed
    fmt::print(stderr, "braid: {}\n", visible_text(e.what()));
  }
  Rows rows;
  Json json = Json::array();
  for (const std::int64_t iteration : iterations_in(options.path)) {
    const IterationFiles files = files_of(iteration_folder(options.path, iteration));
    rows.push_back(
        {std::to_string(iteration), readable_bytes(files.bytes), std::to_string(files.count), time_text(files.saved_at),
         files.writers.empty() ? "-" : fmt::format("{} ({})", files.writers.size(), fold_ranks(files.writers)),
         iteration == latest ? "latest" : ""});
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
  return vector_of<std::string>(group.dtypes, [](const StoredDtype dtype) { return name_of(dtype); });
}

void print_facts(const DistCheckpoint& checkpoint, const KnownRun& known) {
  const IterationFiles files = files_of(checkpoint.folder());
  print_text(format_table({checkpoint.folder()}, {}) + "\n");
  const auto print_fact = [](const char* name, const std::string& fact) {
    print_text(fmt::format("{:<18}{}\n", name, fact));
  };
  if (known.run) {
    print_fact("iteration", std::to_string(known.run->position.iteration));
    print_fact("consumed samples", count_text(known.run->position.consumed_samples));
    if (!known.run->initialized_from.empty()) print_fact("initialized from", known.run->initialized_from);
  }
  if (known.recipe) {
    const Topology topology(known.recipe->topology, workload_of(*known.recipe));
    print_fact("model", fmt::format("{}, {}", known.recipe->model.provider, known.recipe->model.dtype));
    print_fact("layout", fmt::format("{}: {}", counted(topology.world_size(), "rank"), topology_line(topology)));
  } else {
    print_fact("layout", fmt::format("unknown: {}", known.why_no_recipe));
  }
  print_fact("saved", fmt::format("{} by rank{} {}", time_text(files.saved_at), files.writers.size() == 1 ? "" : "s",
                                  fold_ranks(files.writers)));
  print_fact("files", fmt::format("{}, {}, {}\n", files.count, readable_bytes(files.bytes),
                                  checkpoint.has_checksums() ? "with checksums" : "no checksums"));
}

void print_groups(const DistMetadata& metadata, const std::vector<KeyGroup>& groups) {
  Rows rows;
  for (const KeyGroup& group : groups)
    rows.push_back({group.name, std::to_string(group.tensors), count_text(group.elements),
                    joined(dtype_names(group), ", "), readable_bytes(group.bytes)});
  std::int64_t object_bytes = 0;
  for (const auto& [key, part] : metadata.objects) object_bytes += part.length;
  if (!metadata.objects.empty())
    rows.push_back({"objects", std::to_string(metadata.objects.size()), "", "", readable_bytes(object_bytes)});
  print_text(format_table({"group", "tensors", "elements", "dtype", "bytes"}, rows));
}

void print_keys(const DistMetadata& metadata, const CkptOptions& options) {
  Rows rows;
  for (const auto& [key, tensor] : metadata.tensors)
    if (key.find(options.key) != key.npos)
      rows.push_back({name_of(tensor.dtype), shape_text(tensor.shape), std::to_string(tensor.chunks.size()),
                      readable_bytes(bytes_of(tensor)), key});
  for (const auto& [key, part] : metadata.objects)
    if (key.find(options.key) != key.npos) rows.push_back({"object", "", "", readable_bytes(part.length), key});
  if (rows.empty()) throw misuse(fmt::format("no key contains '{}'", options.key), "leave it out to see all of them");
  print_text(format_table({"dtype", "shape", "chunks", "bytes", "key"}, rows));
}

Json json_of(const DistCheckpoint& checkpoint, const KnownRun& known, const CkptOptions& options) {
  const DistMetadata& metadata = checkpoint.metadata();
  const IterationFiles files = files_of(checkpoint.folder());
  Json json = {
      {"path", checkpoint.folder()},       {"bytes", files.bytes},     {"files", files.count},
      {"saved_at", files.saved_at},        {"writers", files.writers}, {"checksums", checkpoint.has_checksums()},
      {"objects", metadata.objects.size()}};
  if (known.run) {
    json["iteration"] = known.run->position.iteration;
    json["consumed_samples"] = known.run->position.consumed_samples;
    json["initialized_from"] = known.run->initialized_from;
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
    if (key.find(options.key) != key.npos)
      json["tensors"].push_back({{"key", key},
                                 {"dtype", name_of(tensor.dtype)},
                                 {"shape", tensor.shape},
                                 {"chunks", tensor.chunks.size()},
                                 {"bytes", bytes_of(tensor)}});
  return json;
}

void list(CkptOptions options) {
  options.keys = options.keys || !options.key.empty();
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
  throw misuse(fmt::format("there is no tensor or object '{}'", key), fix);
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
  fmt::print("{:.6g}{}\n", fmt::join(numbers.first, " "), num_elements(tensor.shape) > kValues ? " ..." : "");
}

void show(const CkptOptions& options) {
  constexpr std::size_t kMost = 100'000;
  DistCheckpoint checkpoint(chosen_iteration(options.path, options.iteration));
  const DistMetadata& metadata = checkpoint.metadata();
  const std::string& key = options.key;
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

Command ls_command() {
  const auto o = std::make_shared<CkptOptions>();
  return {.name = "ls",
          .help = "List the iterations of a folder, or the contents of one",
          .options = {{"path", &o->path, "folder of checkpoints, or of one iteration", kRequired},
                      {"filter", &o->key, "with --keys: only keys that contain this"},
                      {"--iteration", &o->iteration, "show this iteration of the folder"},
                      {"--keys", &o->keys, "list every tensor and object (of a folder: of its latest iteration)"},
                      {"--json", &o->json, "print JSON, for programs"}},
          .run = [o](Call&) { list(*o); }};
}

Command show_command() {
  const auto o = std::make_shared<CkptOptions>();
  return {.name = "show",
          .help = "Show one tensor or object of a checkpoint, or `common`",
          .options = {{"path", &o->path, kCheckpointHelp, kRequired},
                      {"key", &o->key, "key of a tensor or an object; `common` shows common.pt", kRequired},
                      {"--iteration", &o->iteration, "show this iteration of the folder"}},
          .run = [o](Call&) { show(*o); }};
}

void print_written(const WrittenModel& written, const std::string& folder) {
  fmt::print("wrote {}, {}, to {}\n", counted(written.tensors, "tensor"), readable_bytes(written.bytes), folder);
}

// On a terminal, as long as the status lives.
ByteProgress shown_by(WorkStatus& status, const std::string& doing) {
  return [&status, doing](std::int64_t done, std::int64_t total) {
    status.show(doing, static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(total, 1)));
  };
}

std::vector<std::string> folders_of(const CkptOptions& command) {
  if (!command.all) return {chosen_iteration(command.path, command.iteration)};
  if (command.iteration) throw misuse("--all and --iteration were both given", "use one of them");
  std::vector<std::string> folders;
  for (const std::int64_t iteration : iterations_in(command.path, Complete::OrNot))
    folders.push_back(iteration_folder(command.path, iteration));
  if (folders.empty())
    throw ConfigError({fmt::format("there are no iterations in '{}'", command.path), "--all",
                       "give a folder of checkpoints, or leave out --all"});
  return folders;
}

std::string last_name(const std::string& path) { return fs::path(without_end_slash(path)).filename().string(); }

void print_report(const std::string& folder, const VerifyReport& report) {
  fmt::print("{}: {}, {}, {}: {}\n", last_name(folder), counted(report.files, "file"), readable_bytes(report.bytes),
             counted(report.tensors, "tensor"),
             !report.problems.empty() ? counted(std::ssize(report.problems), "problem")
             : report.has_checksums   ? "intact"
                                      : "no problems found (it has no checksums: values were not checked)");
  for (const Problem& problem : report.problems) {
    const bool says_where = problem.where.empty() || problem.what.find(problem.where) != std::string::npos;
    print_text(fmt::format("  {}{}\n", says_where ? "" : problem.where + ": ", problem.what));
  }
}

Json json_of(const std::string& folder, const VerifyReport& report) {
  Json problems = Json::array();
  for (const Problem& problem : report.problems) problems.push_back({{"file", problem.where}, {"what", problem.what}});
  return {{"path", folder},
          {"ok", report.problems.empty()},
          {"files", report.files},
          {"bytes", report.bytes},
          {"tensors", report.tensors},
          {"objects", report.objects},
          {"checksums", report.has_checksums},
          {"problems", problems}};
}

int verify(const CkptOptions& command) {
  bool sound = true;
  Json json = Json::array();
  for (const std::string& folder : folders_of(command)) {
    WorkStatus status;
    const VerifyReport report =
        verify_checkpoint(folder, {.progress = shown_by(status, "checking " + last_name(folder))});
    status.clear();
    sound = sound && report.problems.empty();
    command.json ? json.push_back(json_of(folder, report)) : print_report(folder, report);
  }
  if (command.json) print_json(json);
  return sound ? 0 : 1;
}

std::string what_of(const DistTensor& tensor) {
  return fmt::format("{} {}", name_of(tensor.dtype), shape_text(tensor.shape));
}

void print_comparison(const Comparison& comparison, const CkptOptions& command) {
  Rows rows;
  std::string others;
  std::size_t equal = 0;
  for (const TensorDifference& tensor : comparison.tensors) {
    equal += tensor.equal();
    if (!tensor.comparable()) {
      others += !tensor.second  ? fmt::format("only in {}: {}\n", command.path, tensor.key)
                : !tensor.first ? fmt::format("only in {}: {}\n", command.other, tensor.key)
                                : fmt::format("{} is {}, in {} it is {}\n", tensor.key, what_of(*tensor.first),
                                              command.other, what_of(*tensor.second));
    } else if (command.all || !tensor.equal()) {
      std::string dtypes = name_of(tensor.first->dtype);
      if (tensor.second->dtype != tensor.first->dtype) dtypes += fmt::format(" / {}", name_of(tensor.second->dtype));
      rows.push_back({fmt::format("{:.4g}", tensor.largest), fmt::format("{:.4g}", tensor.l2),
                      fmt::format("{:.3g}", tensor.relative),
                      fmt::format("{} of {}", tensor.different, num_elements(tensor.first->shape)), dtypes,
                      tensor.key});
    }
  }
  for (const ObjectDifference& object : comparison.objects)
    others += object.in_first && object.in_second
                  ? fmt::format("objects differ: {}\n", object.key)
                  : fmt::format("only in {}: {}\n", object.in_first ? command.path : command.other, object.key);
  if (!rows.empty()) print_text(format_table({"max |a-b|", "L2", "relative", "elements", "dtype", "tensor"}, rows));
  print_text(fmt::format("{}{}{} of {} tensors are equal bit for bit\n", others,
                         rows.empty() && others.empty() ? "" : "\n", equal, comparison.tensors.size()));
}

Json json_of(const Comparison& comparison, const CkptOptions& command) {
  const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  Json json = {{"a", command.path}, {"b", command.other}, {"equal", comparison.equal()}};
  json["tensors"] = json["objects"] = Json::array();
  for (const TensorDifference& tensor : comparison.tensors) {
    if (tensor.equal() && !command.all) continue;
    Json entry = {{"key", tensor.key}, {"equal", tensor.equal()}};
    for (const auto& [side, stored] : {std::pair("a", tensor.first), std::pair("b", tensor.second)})
      entry[side] = stored ? Json{{"dtype", name_of(stored->dtype)}, {"shape", stored->shape}} : Json();
    if (tensor.comparable())
      entry.update({{"max", number(tensor.largest)},
                    {"l2", number(tensor.l2)},
                    {"relative", number(tensor.relative)},
                    {"different", tensor.different}});
    json["tensors"].push_back(std::move(entry));
  }
  for (const ObjectDifference& object : comparison.objects)
    json["objects"].push_back({{"key", object.key}, {"in_a", object.in_first}, {"in_b", object.in_second}});
  return json;
}

int diff(const CkptOptions& command) {
  DistCheckpoint first(chosen_iteration(command.path, {})), second(chosen_iteration(command.other, {}));
  WorkStatus status;
  const Comparison comparison = compare_checkpoints(first, second, shown_by(status, "comparing"));
  status.clear();
  if (command.json)
    print_json(json_of(comparison, command));
  else
    print_comparison(comparison, command);
  return comparison.equal() ? 0 : 1;
}

struct ConvertCommand {
  std::vector<std::string> paths;
  int files = 1;
  bool no_optimizer = false;
  std::string naming, to_hf, recipe, language, images;
};

void check(const ConvertCommand& command) {
  const bool from_recipe = !command.recipe.empty(), to_hf = !command.to_hf.empty();
  const bool of_checkpoint = command.files != 1 || command.no_optimizer || !command.naming.empty();
  const auto refuse_if = [](bool wrong, const std::string& what, const char* fix) {
    if (wrong) throw misuse(what, fix);
  };
  refuse_if(command.paths.size() != (from_recipe ? 1 : 2),
            fmt::format("{} given", counted(std::ssize(command.paths), "folder")),
            from_recipe ? "with --recipe, give only the folder to write" : "give the folders to read and to write");
  refuse_if(!from_recipe && !(command.language + command.images).empty(), "--language and --images need a recipe",
            "give the recipe of the model with --recipe");
  refuse_if(from_recipe && to_hf, "--recipe and --to-hf were both given", "use one of them");
  refuse_if((from_recipe || to_hf) && of_checkpoint,
            "--files, --no-optimizer and --naming only apply when a checkpoint is converted to a checkpoint",
            "leave them out with --recipe and --to-hf");
}

KeyRenames renames_for(const std::string& naming, const DistMetadata& metadata, const KnownRun& known) {
  const KeyScheme scheme = naming == "nemotron" ? KeyScheme::Nemotron : KeyScheme::Modules;
  KeyRenames renames = renames_to(scheme, metadata, known.recipe);
  bool in_modules = false, any = false;
  for (const auto& [key, tensor] : metadata.tensors) {
    in_modules |= key.starts_with("language_model.module.") || key.starts_with("modality_submodules.");
    any |= renamed(key, renames).has_value();
  }
  if (!any || in_modules == (scheme == KeyScheme::Modules))
    throw ConfigError({fmt::format("the checkpoint has no keys to rename to '{}': they are already in that naming, or "
                                   "in an unknown one",
                                   naming),
                       "--naming", "see `braid ckpt ls PATH --keys`"});
  return renames;
}

void rewrite(const ConvertCommand& command) {
  DistCheckpoint from(chosen_iteration(command.paths[0], {}));
  const KnownRun known = known_run(from);
  RewriteOptions options = {.files = command.files};
  if (!command.naming.empty()) {
    options.rename = [renames = renames_for(command.naming, from.metadata(), known)](const std::string& key) {
      return renamed(key, renames);
    };
  } else if (command.no_optimizer) {
    options.rename = [](const std::string& key) { return is_optimizer_key(key) ? std::nullopt : std::optional(key); };
  }
  WorkStatus status;
  options.progress = shown_by(status, "writing");
  const std::int64_t iteration =
      known.run ? known.run->position.iteration : iteration_of(last_name(from.folder())).value_or(0);
  const Rewritten written = rewrite_checkpoint(from, command.paths[1], iteration, options);
  status.clear();
  fmt::print("wrote {}: {}, {}, {}\n", iteration_folder(command.paths[1], iteration),
             counted(written.tensors, "tensor"), counted(written.objects, "object"), readable_bytes(written.bytes));
}

void write_initial(const ConvertCommand& command) {
  const Recipe recipe = load_recipe(command.recipe);
  std::map<std::string, std::string> folders;
  if (!command.images.empty()) folders["images"] = command.images;
  if (!command.language.empty())
    for (const ModuleConfig& module : recipe.topology.modules)
      if (module.kind == ModuleKind::Language) folders[module.name] = command.language;
  WorkStatus status;
  const InitialCheckpoint written =
      write_initial_checkpoint(recipe, folders, command.paths[0], shown_by(status, "writing"));
  status.clear();
  for (const std::string& note : written.notes) fmt::print("note: {}\n", note);
  fmt::print("wrote {}: {}, {}; start from it with --load {} --finetune\n", iteration_folder(command.paths[0], 0),
             counted(written.tensors, "tensor"), readable_bytes(written.bytes), command.paths[0]);
}

void convert(const ConvertCommand& command) {
  check(command);
  if (!command.recipe.empty()) return write_initial(command);
  if (command.to_hf.empty()) return rewrite(command);
  DistCheckpoint from(chosen_iteration(command.paths[0], {}));
  print_written(write_hf_module(from, command.to_hf, command.paths[1]), command.paths[1]);
}

Command verify_command() {
  const auto o = std::make_shared<CkptOptions>();
  return {.name = "verify",
          .help = "Read a whole checkpoint and report what is wrong with it",
          .options = {{"path", &o->path, kCheckpointHelp, kRequired},
                      {"--iteration", &o->iteration, "the iteration to check (default: the latest)"},
                      {"--all", &o->all, "all iterations of the folder"},
                      {"--json", &o->json, "print JSON, for programs"}},
          .footer = "The exit code is 0 if all is intact, 1 if something is wrong, and 2 if there is no checkpoint.",
          .run = [o](Call& call) { call.exit_code = verify(*o); }};
}

Command diff_command() {
  const auto o = std::make_shared<CkptOptions>();
  return {.name = "diff",
          .help = "Compare the tensors and objects of two checkpoints",
          .options = {{"a", &o->path, kCheckpointHelp, kRequired},
                      {"b", &o->other, "the other one", kRequired},
                      {"--all", &o->all, "also print tensors that are equal"},
                      {"--json", &o->json, "print JSON, for programs"}},
          .footer =
              "The exit code is 0 if all are bitwise equal, 1 if they are not, and 2 if they could not be compared. "
              "common.pt is not compared.",
          .run = [o](Call& call) {
            call.exit_code = 2;  // if diff() throws; 1 means that the checkpoints differ
            const int answer = diff(*o);
            if (std::fflush(stdout) == 0) call.exit_code = answer;
          }};
}

Command convert_command() {
  const auto o = std::make_shared<ConvertCommand>();
  return {
      .name = "convert",
      .help = "Rewrite a checkpoint, or convert from or to Hugging Face folders",
      .options = {{"DST", &o->paths, "the checkpoint to read, and the folder to write; with --recipe, only DST",
                   Rules{.usage = "[SRC] DST", .most = 2, .required = true}},
                  {"--files", &o->files, "how many .distcp files to write", Rules{.check = WholeRange{1, 4096}}},
                  {"--no-optimizer", &o->no_optimizer, "leave out the optimizer state"},
                  {"--naming", &o->naming,
                   "nemotron: language_model., vision_model., vision_projection., weights only; modules: Braid's",
                   Rules{.check = OneOf{{"modules", "nemotron"}}}},
                  {"--to-hf", &o->to_hf, "write this module (language, images) as a Hugging Face folder"},
                  {"--recipe", &o->recipe, "write iteration 0 of this recipe's model"},
                  {"--language", &o->language, "with --recipe: Hugging Face folder of the language model"},
                  {"--images", &o->images, "with --recipe: Hugging Face folder of the vision encoder"}},
      .footer = "Nothing is overwritten: DST must not have the iteration; a Hugging Face folder must be new or empty.",
      .run = [o](Call&) { convert(*o); }};
}

Command conversion(const char* name, const char* help, const char* from, const char* to,
                   WrittenModel (*convert)(const std::string& from, const std::string& to)) {
  const auto folders = std::make_shared<CkptOptions>();
  return {.name = name,
          .help = help,
          .options = {{from, &folders->path, "folder to read", kRequired},
                      {to, &folders->other, "folder to write: new, or empty", kRequired}},
          .run = [folders, convert](Call&) { print_written(convert(folders->path, folders->other), folders->other); }};
}

}  // namespace

Command ckpt_command() {
  return {.name = kCkpt.name,
          .help = kCkpt.help,
          .subcommands = {
              ls_command(), show_command(), verify_command(), diff_command(), convert_command(),
              conversion("import", "Hugging Face folder (nemotron_h, radio) to Braid model folder", "hf_dir",
                         "braid_dir", import_hf),
              conversion("export", "Braid model folder to Hugging Face folder", "braid_dir", "hf_dir", export_hf)}};
}

}  // namespace braid
