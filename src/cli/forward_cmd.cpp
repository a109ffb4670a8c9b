// braid forward: one forward (and backward) of a stored model, in any layout.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>

#include "base/dtype_names.h"
#include "base/strings.h"
#include "cli/commands.h"
#include "cli/tensor_commands.h"
#include "cluster/local/host_capacity.h"
#include "cluster/local/local_launcher.h"
#include "comm/control_line.h"
#include "comm/run_as_rank.h"
#include "comm/visible_gpus.h"
#include "forward/forward_files.h"

namespace braid {
namespace {

struct ForwardCommand {
  ForwardRequest request{};
  std::optional<int> dp{};
  CommConfig dist{};
  bool oversubscribe = false;
};

// The smallest dp for which the experts can be split over the ranks.
int smallest_dp(const ModuleConfig& layout) {
  const std::int64_t experts = std::int64_t{layout.ep} * layout.expt_tp, dense = std::int64_t{layout.tp} * layout.cp;
  const std::int64_t replicas = experts / std::gcd(experts, dense);
  return static_cast<int>(std::min<std::int64_t>(replicas, kMaxWorldSize));
}

int run(ForwardCommand command, const std::vector<std::string>& command_line) {
  ForwardRequest& request = command.request;
  request.layout.name = "model";
  request.layout.dp = command.dp.value_or(smallest_dp(request.layout));
  const Topology topology = check_forward(request);
  const auto spec = world_spec_from(process_env());
  if (!spec) {
    if (!command.oversubscribe) refuse_oversubscription(topology.world_size());
    if (command.dist.device == "cuda" && visible_gpus() == 0) throw ConfigError(no_gpu("--device"));
    return launch_local({.ranks = topology.world_size(),
                         .command = command_line,
                         .log_dir = "",
                         .port = 0,
                         .rank_coordinates = topology.all_coordinates()});
  }
  if (spec->size != topology.world_size())
    throw ConfigError({fmt::format("the layout has {}, but {} {} started", counted(topology.world_size(), "rank"),
                                   spec->size, spec->size == 1 ? "was" : "were"),
                       "command line", "start " + counted(topology.world_size(), "rank")});
  std::string written;
  run_as_rank(*spec, command.dist, topology.all_coordinates(),
              [&](World& world) { written = forward_files(request, topology, world); });
  if (!written.empty()) {
    const std::string line = fmt::format("wrote {}\n", written);
    fmt::print("{}", spec->launcher == Launcher::Local ? to_control_lines({line}) : line);
  }
  return 0;
}

}  // namespace

void add_forward_command(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  auto command = std::make_shared<ForwardCommand>();
  ForwardRequest& request = command->request;
  CLI::App* forward = app.add_subcommand(kForward.name, kForward.help);
  forward->add_option("model_dir", request.model, "folder of a Hugging Face or Braid model")->required();
  forward->add_option("--inputs", request.inputs, "safetensors file, see below")->required();
  forward->add_option("--outputs", request.outputs, "safetensors file to write")->required();
  forward->add_flag("--grads", request.grads, "run backward too and write every parameter's gradient");
  forward->add_option("--dtype", request.dtype, "dtype of weights and computation")
      ->check(CLI::IsMember(dtype_names()))
      ->capture_default_str();
  ModuleConfig& layout = request.layout;
  const CLI::Range is_size(1, kMaxWorldSize);
  forward->add_option("--tp", layout.tp, "tensor parallel size")->check(is_size);
  forward->add_option("--cp", layout.cp, "context parallel size")->check(is_size);
  forward->add_option("--ep", layout.ep, "expert parallel size")->check(is_size);
  forward->add_option("--expt-tp", layout.expt_tp, "tensor parallel size inside experts")->check(is_size);
  forward->add_option("--pp", layout.pp, "pipeline parallel size")->check(is_size);
  forward->add_option("--vpp", layout.vpp, "pipeline stages per rank")->check(is_size);
  forward->add_option("--dp", command->dp, "data parallel size; default: the smallest possible")->check(is_size);
  forward->add_flag("--sequence-parallel", request.sequence_parallel, "use sequence parallelism between layers");
  forward->add_flag("--recompute", request.recompute, "recompute each layer's activations in backward");
  forward->add_option("--device", command->dist.device, "cpu, cuda, or auto: cuda if there is a GPU")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  forward->add_flag("--oversubscribe", command->oversubscribe, kOversubscribeHelp);
  forward->footer(
      "Inputs of nemotron_h: input_ids [B, S]; labels [B, S], unshifted, -100 ignored; cu_seqlens of sequences packed "
      "into one row.\n"
      "Inputs of radio: pixel_values [B, 3, H, W], or patches [P, 768] with imgs_sizes [images, 2]; features_grad, "
      "the gradient that backward starts from (default: ones).\n"
      "Outputs: logits, loss (mean over counted labels), features, grad.<name> for every name of a tensor: in the "
      "folder, in published checkpoints, in transformers. Full tensors in every layout.");
  forward->callback([command, &command_line, &exit_code] {
    command->request.dtype = full_dtype_name(command->request.dtype);
    exit_code = run(*command, command_line);
  });
}

}  // namespace braid
