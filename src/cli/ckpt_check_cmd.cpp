// braid ckpt verify and diff: whether a checkpoint is intact, and how two checkpoints differ.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/compare.h"
#include "ckpt/verify.h"
#include "cli/ckpt_commands.h"
#include "plan/param_spec.h"

namespace braid {
namespace {

using Json = nlohmann::json;

struct VerifyCommand {
  std::string path;
  std::optional<std::int64_t> iteration;
  bool all = false, json = false;
};

std::vector<std::string> folders_of(const VerifyCommand& command) {
  if (!command.all) return {chosen_iteration(command.path, command.iteration)};
  if (command.iteration)
    throw ConfigError({"--all and --iteration were both given", "command line", "use one of them"});
  std::vector<std::string> folders;
  for (const std::int64_t iteration : iterations_in(command.path, Complete::OrNot))
    folders.push_back(iteration_folder(command.path, iteration));
  if (folders.empty())
    throw ConfigError({fmt::format("there are no iterations in '{}'", command.path), "--all",
                       "give a folder of checkpoints, or leave out --all"});
  return folders;
}

std::string last_name(const std::string& path) {
  const std::filesystem::path full(path);
  return (full.has_filename() ? full : full.parent_path()).filename().string();
}

std::string verdict(const VerifyReport& report) {
  if (!report.problems.empty()) return counted(std::ssize(report.problems), "problem");
  return report.has_checksums ? "intact" : "no problems found (it has no checksums: values were not checked)";
}

void print_report(const std::string& folder, const VerifyReport& report) {
  fmt::print("{}: {}, {}, {}: {}\n", last_name(folder), counted(report.files, "file"), readable_bytes(report.bytes),
             counted(report.tensors, "tensor"), verdict(report));
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

int verify(const VerifyCommand& command) {
  bool sound = true;
  Json json = Json::array();
  for (const std::string& folder : folders_of(command)) {
    VerifyReport report;
    {
      ProgressLine line(fmt::format("checking {}", last_name(folder)));
      report =
          verify_checkpoint(folder, {.progress = [&](std::int64_t done, std::int64_t total) { line(done, total); }});
    }
    sound = sound && report.problems.empty();
    command.json ? json.push_back(json_of(folder, report)) : print_report(folder, report);
  }
  // Names come from files and may contain anything.
  if (command.json) fmt::print("{}\n", json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
  return sound ? 0 : 1;
}

struct DiffCommand {
  std::string first, second;
  bool all = false, json = false;
};

std::string pair_text(const std::string& first, const std::string& second) {
  return first == second ? first : first + " / " + second;
}

std::string what_of(const DistTensor& tensor) {
  return fmt::format("{} {}", name_of(tensor.dtype), shape_text(tensor.shape));
}

void print_comparison(const Comparison& comparison, const DiffCommand& command) {
  std::vector<std::vector<std::string>> rows;
  std::string others;
  std::size_t equal = 0;
  for (const TensorDifference& tensor : comparison.tensors) {
    equal += tensor.equal();
    if (!tensor.comparable()) {
      others += !tensor.second  ? fmt::format("only in {}: {}\n", command.first, tensor.key)
                : !tensor.first ? fmt::format("only in {}: {}\n", command.second, tensor.key)
                                : fmt::format("{} is {}, in {} it is {}\n", tensor.key, what_of(*tensor.first),
                                              command.second, what_of(*tensor.second));
    } else if (command.all || !tensor.equal()) {
      rows.push_back({fmt::format("{:.4g}", tensor.largest), fmt::format("{:.4g}", tensor.l2),
                      fmt::format("{:.3g}", tensor.relative),
                      fmt::format("{} of {}", tensor.different, num_elements(tensor.first->shape)),
                      pair_text(name_of(tensor.first->dtype), name_of(tensor.second->dtype)), tensor.key});
    }
  }
  for (const ObjectDifference& object : comparison.objects)
    others += object.in_first && object.in_second
                  ? fmt::format("objects differ: {}\n", object.key)
                  : fmt::format("only in {}: {}\n", object.in_first ? command.first : command.second, object.key);
  if (!rows.empty()) print_text(format_table({"max |a-b|", "L2", "relative", "elements", "dtype", "tensor"}, rows));
  print_text(fmt::format("{}{}{} of {} tensors are equal bit for bit\n", others,
                         rows.empty() && others.empty() ? "" : "\n", equal, comparison.tensors.size()));
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json json_of(const Comparison& comparison, const DiffCommand& command) {
  Json json = {{"a", command.first}, {"b", command.second}, {"equal", comparison.equal()}};
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

int diff(const DiffCommand& command) {
  DistCheckpoint first(chosen_iteration(command.first, {})), second(chosen_iteration(command.second, {}));
  Comparison comparison;
  {
    ProgressLine line("comparing");
    comparison = compare_checkpoints(first, second, [&](std::int64_t done, std::int64_t total) { line(done, total); });
  }
  if (command.json)
    fmt::print("{}\n",
               json_of(comparison, command).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
  else
    print_comparison(comparison, command);
  return comparison.equal() ? 0 : 1;
}

}  // namespace

void add_ckpt_verify_command(CLI::App& ckpt, int& exit_code) {
  auto options = std::make_shared<VerifyCommand>();
  CLI::App* command = ckpt.add_subcommand("verify", "Read a whole checkpoint and report what is wrong with it");
  command
      ->add_option("path", options->path, "folder of checkpoints (its latest iteration is used), or of one iteration")
      ->required();
  command->add_option("--iteration", options->iteration, "the iteration to check (default: the latest)");
  command->add_flag("--all", options->all, "all iterations of the folder");
  command->add_flag("--json", options->json, "print JSON, for programs");
  command->footer("The exit code is 0 if all is intact, 1 if something is wrong, and 2 if there is no checkpoint.");
  command->callback([options, &exit_code] { exit_code = verify(*options); });
}

void add_ckpt_diff_command(CLI::App& ckpt, int& exit_code) {
  auto options = std::make_shared<DiffCommand>();
  CLI::App* command = ckpt.add_subcommand("diff", "Compare the tensors and objects of two checkpoints");
  command->add_option("a", options->first, "folder of checkpoints (its latest iteration is used), or of one iteration")
      ->required();
  command->add_option("b", options->second, "the other one")->required();
  command->add_flag("--all", options->all, "also print tensors that are equal");
  command->add_flag("--json", options->json, "print JSON, for programs");
  command->footer(
      "The exit code is 0 if all are bitwise equal, 1 if they are not, and 2 if they could not be compared. "
      "common.pt is not compared.");
  command->callback([options, &exit_code] {
    exit_code = 2;  // for every exception: 1 would mean that they differ
    const int answer = diff(*options);
    if (std::fflush(stdout) == 0) exit_code = answer;
  });
}

}  // namespace braid
