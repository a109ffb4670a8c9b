// braid ckpt convert: rewrites a checkpoint with other files or keys, or converts from and to Hugging Face folders.
#include <CLI/CLI.hpp>

#include <filesystem>
#include <map>
#include <memory>

#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/rewrite_checkpoint.h"
#include "cli/ckpt_commands.h"
#include "run/convert_hf.h"
#include "run/stored_run.h"

namespace braid {
namespace {

struct ConvertCommand {
  std::vector<std::string> paths;
  int files = 1;
  bool no_optimizer = false;
  std::string naming, to_hf, recipe, language, images;
};

[[noreturn]] void misuse(const std::string& what, const std::string& fix) {
  throw ConfigError({what, "command line", fix});
}

void check(const ConvertCommand& command) {
  const bool from_recipe = !command.recipe.empty(), to_hf = !command.to_hf.empty();
  if (command.paths.size() != (from_recipe ? 1 : 2))
    misuse(fmt::format("{} given", counted(std::ssize(command.paths), "folder")),
           from_recipe ? "with --recipe, give only the folder to write" : "give the folders to read and to write");
  if (!from_recipe && !(command.language + command.images).empty())
    misuse("--language and --images need a recipe", "give the recipe of the model with --recipe");
  if (from_recipe && to_hf) misuse("--recipe and --to-hf were both given", "use one of them");
  if ((from_recipe || to_hf) && (command.files != 1 || command.no_optimizer || !command.naming.empty()))
    misuse("--files, --no-optimizer and --naming only apply when a checkpoint is converted to a checkpoint",
           "leave them out with --recipe and --to-hf");
}

std::int64_t iteration_to_write(const DistCheckpoint& from, const KnownRun& known) {
  if (known.run) return known.run->position.iteration;
  return iteration_of(std::filesystem::path(from.folder()).filename().string()).value_or(0);
}

KeyRenames renames_for(const std::string& naming, const DistMetadata& metadata, const KnownRun& known) {
  const KeyScheme scheme = naming == "nemotron" ? KeyScheme::Nemotron : KeyScheme::Modules;
  KeyRenames renames = renames_to(scheme, metadata, known.recipe);
  const bool in_modules = std::any_of(metadata.tensors.begin(), metadata.tensors.end(), [](const auto& entry) {
    return entry.first.starts_with("language_model.module.") || entry.first.starts_with("modality_submodules.");
  });
  const bool any = std::any_of(metadata.tensors.begin(), metadata.tensors.end(),
                               [&](const auto& entry) { return renamed(entry.first, renames).has_value(); });
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
  ProgressLine line("writing");
  options.progress = [&](std::int64_t done, std::int64_t total) { line(done, total); };
  const std::int64_t iteration = iteration_to_write(from, known);
  const Rewritten written = rewrite_checkpoint(from, command.paths[1], iteration, options);
  fmt::print("wrote {}: {}, {}, {}\n", iteration_folder(command.paths[1], iteration),
             counted(written.tensors, "tensor"), counted(written.objects, "object"), readable_bytes(written.bytes));
}

void write_hf(const ConvertCommand& command) {
  DistCheckpoint from(chosen_iteration(command.paths[0], {}));
  const WrittenModel written = write_hf_module(from, command.to_hf, command.paths[1]);
  fmt::print("wrote {}, {}, to {}\n", counted(written.tensors, "tensor"), readable_bytes(written.bytes),
             command.paths[1]);
}

void write_initial(const ConvertCommand& command) {
  const Recipe recipe = load_recipe(command.recipe);
  std::map<std::string, std::string> folders;
  if (!command.images.empty()) folders["images"] = command.images;
  if (!command.language.empty())
    for (const ModuleConfig& module : recipe.topology.modules)
      if (module.kind == "language") folders[module.name] = command.language;
  ProgressLine line("writing");
  const InitialCheckpoint written = write_initial_checkpoint(
      recipe, folders, command.paths[0], [&](std::int64_t done, std::int64_t total) { line(done, total); });
  for (const std::string& note : written.notes) fmt::print("note: {}\n", note);
  fmt::print("wrote {}: {}, {}; start from it with --load {} --finetune\n", iteration_folder(command.paths[0], 0),
             counted(written.tensors, "tensor"), readable_bytes(written.bytes), command.paths[0]);
}

void convert(const ConvertCommand& command) {
  check(command);
  if (!command.recipe.empty()) return write_initial(command);
  command.to_hf.empty() ? rewrite(command) : write_hf(command);
}

}  // namespace

void add_ckpt_convert_command(CLI::App& ckpt) {
  auto options = std::make_shared<ConvertCommand>();
  CLI::App* command =
      ckpt.add_subcommand("convert", "Rewrite a checkpoint, or convert from or to Hugging Face folders");
  command->add_option("DST", options->paths, "the checkpoint to read, and the folder to write; with --recipe, only DST")
      ->required()
      ->expected(1, 2)
      ->option_text("[SRC] DST");
  command->add_option("--files", options->files, "how many .distcp files to write")->check(CLI::Range(1, 4096));
  command->add_flag("--no-optimizer", options->no_optimizer, "leave out the optimizer state");
  command
      ->add_option("--naming", options->naming,
                   "nemotron: language_model., vision_model., vision_projection., weights only; modules: Braid's")
      ->check(CLI::IsMember({"modules", "nemotron"}));
  command->add_option("--to-hf", options->to_hf, "write this module (language, images) as a Hugging Face folder");
  command->add_option("--recipe", options->recipe, "write iteration 0 of this recipe's model");
  command->add_option("--language", options->language, "with --recipe: Hugging Face folder of the language model");
  command->add_option("--images", options->images, "with --recipe: Hugging Face folder of the vision encoder");
  command->footer(
      "Nothing is overwritten: DST must not have the iteration; a Hugging Face folder must be new or empty.");
  command->callback([options] { convert(*options); });
}

}  // namespace braid
