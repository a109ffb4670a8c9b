// braid forward: one forward (and backward) of a stored model, in any layout.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>

#include "base/strings.h"
#include "cli/commands.h"
#include "cluster/local/host_capacity.h"
#include "cluster/local/local_launcher.h"
#include "comm/control_line.h"
#include "comm/run_as_rank.h"
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

Command forward_command() {
  const auto o = std::make_shared<ForwardCommand>();
  ForwardRequest& request = o->request;
  ModuleConfig& layout = request.layout;
  const Rules size = Rules{.check = WholeRange{1, kMaxWorldSize}};
  return {
      .name = kForward.name,
      .help = kForward.help,
      .options = {{"model_dir", &request.model, "folder of a Hugging Face or Braid model", kRequired},
                  {"--inputs", &request.inputs, "safetensors file, see below", kRequired},
                  {"--outputs", &request.outputs, "safetensors file to write", kRequired},
                  {"--grads", &request.grads, "run backward too and write every parameter's gradient"},
                  {"--dtype", &request.dtype, "dtype of weights and computation",
                   Rules{.check = OneOf{dtype_names()}, .shows_default = true}},
                  {"--tp", &layout.tp, "tensor parallel size", size},
                  {"--cp", &layout.cp, "context parallel size", size},
                  {"--ep", &layout.ep, "expert parallel size", size},
                  {"--expt-tp", &layout.expt_tp, "tensor parallel size inside experts", size},
                  {"--pp", &layout.pp, "pipeline parallel size", size},
                  {"--vpp", &layout.vpp, "pipeline stages per rank", size},
                  {"--dp", &o->dp, "data parallel size; default: the smallest possible", size},
                  {"--sequence-parallel", &request.sequence_parallel, "use sequence parallelism between layers"},
                  {"--recompute", &request.recompute, "recompute each layer's activations in backward"},
                  {"--device", &o->dist.device, "cpu, cuda, or auto: cuda if there is a GPU",
                   Rules{.check = OneOf{{"auto", "cpu", "cuda"}}}},
                  {"--oversubscribe", &o->oversubscribe, kOversubscribeHelp}},
      .footer =
          "Inputs of nemotron_h: input_ids [B, S]; labels [B, S], unshifted, -100 ignored; cu_seqlens of sequences "
          "packed into one row.\n"
          "Inputs of radio: pixel_values [B, 3, H, W], or patches [P, 768] with imgs_sizes [images, 2]; features_grad, "
          "the gradient that backward starts from (default: ones).\n"
          "Outputs: logits, loss (mean over counted labels), features, grad.<name> for every name of a tensor: in the "
          "folder, in published checkpoints, in transformers. Full tensors in every layout.",
      .run = [o](Call& call) {
        o->request.dtype = full_dtype_name(o->request.dtype);
        call.exit_code = run(*o, call.command_line);
      }};
}

}  // namespace braid
