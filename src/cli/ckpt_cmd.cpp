// braid ckpt: inspects and verifies checkpoints, and converts models from and to other formats.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "ckpt/checkpoint_folder.h"
#include "cli/ckpt_commands.h"
#include "cli/commands.h"
#include "cli/tensor_commands.h"
#include "hf/model.h"

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
    fmt::print("wrote {}, {}, to {}\n", counted(written.tensors, "tensor"), readable_bytes(written.bytes), folders->to);
  });
}

}  // namespace

std::string chosen_iteration(const std::string& path, std::optional<std::int64_t> iteration) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored))
    throw ConfigError(
        {fmt::format("there is no folder '{}'", path), "command line", "give the folder of a checkpoint"});
  const std::vector<std::int64_t> iterations = iterations_in(path);
  if (iterations.empty() && files_of(path).writers.empty() && !find_iteration(path))
    throw ConfigError({fmt::format("there is no checkpoint in '{}'", path), "command line",
                       "give the folder that a run saves to, or one of its iterations, e.g. ckpt/iter_0000100"});
  if (!iteration) return resolve_iteration(path);
  const std::string folder = iteration_folder(path, *iteration);
  if (std::filesystem::is_directory(folder, ignored)) return folder;
  throw ConfigError({fmt::format("there is no {}", folder), "--iteration",
                     iterations.empty() ? "leave it out: this is the folder of one iteration"
                                        : fmt::format("it has {}", fmt::join(iterations, ", "))});
}

void print_text(std::string_view text) { fmt::print("{}", visible_text(text)); }

ProgressLine::ProgressLine(std::string what) : what_(std::move(what)), terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (drawn_ != Clock::time_point()) fmt::print(stderr, "\r\033[K");
}

void ProgressLine::operator()(std::int64_t done, std::int64_t total) {
  using namespace std::chrono_literals;
  const Clock::time_point now = Clock::now();
  if (!terminal_ || now - start_ < 3s || now - drawn_ < 200ms) return;
  drawn_ = now;
  fmt::print(stderr, "\r\033[K{}: {} of {}", what_, readable_bytes(done), readable_bytes(total));
  std::fflush(stderr);
}

void add_ckpt_command(CLI::App& app, int& exit_code) {
  CLI::App* ckpt = app.add_subcommand(kCkpt.name, kCkpt.help);
  ckpt->require_subcommand(1);
  add_ckpt_ls_command(*ckpt);
  add_ckpt_show_command(*ckpt);
  add_ckpt_verify_command(*ckpt, exit_code);
  add_ckpt_diff_command(*ckpt, exit_code);
  add_ckpt_convert_command(*ckpt);
  add_conversion(*ckpt, "import", "Hugging Face folder (nemotron_h, radio) to Braid model folder",
                 {"hf_dir", "braid_dir"}, import_hf);
  add_conversion(*ckpt, "export", "Braid model folder to Hugging Face folder", {"braid_dir", "hf_dir"}, export_hf);
}

}  // namespace braid
