// braid ckpt: models from and to other formats.
#include <CLI/CLI.hpp>

#include <memory>

#include "cli/commands.h"
#include "models/hf_model.h"

namespace braid {
namespace {

struct Folders {
  std::string from, to;
};

using Convert = WrittenModel (*)(const std::string& from, const std::string& to);

void add_conversion(CLI::App& ckpt, const char* name, const char* help, const Folders& placeholders, Convert convert) {
  auto folders = std::make_shared<Folders>();
  CLI::App* command = ckpt.add_subcommand(name, help);
  command->add_option(placeholders.from, folders->from, "folder to read")->required();
  command->add_option(placeholders.to, folders->to, "folder to write: new, or empty")->required();
  command->callback([folders, convert] {
    const WrittenModel written = convert(folders->from, folders->to);
    fmt::print("wrote {} tensors, {} bytes, to {}\n", written.tensors, written.bytes, folders->to);
  });
}

}  // namespace

void add_ckpt_command(CLI::App& app) {
  CLI::App* ckpt = app.add_subcommand("ckpt", "Convert models from and to other formats");
  ckpt->require_subcommand(1);
  add_conversion(*ckpt, "import", "Hugging Face folder (nemotron_h, radio) to Braid model folder",
                 {"hf_dir", "braid_dir"}, import_hf);
  add_conversion(*ckpt, "export", "Braid model folder to Hugging Face folder", {"braid_dir", "hf_dir"}, export_hf);
}

}  // namespace braid
