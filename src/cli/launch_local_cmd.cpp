// braid run, launch local, forward and plan calibrate: start ranks on this machine, of a recipe, of a torchrun command,
// of any program, of a stored model, or to measure collectives.

#include "base/error.h"
#include "base/files.h"
#include "base/process.h"
#include "base/strings.h"
#include "cli/command.h"
#include "cli/start.h"
#include "cluster/local/local_launcher.h"
#include "cluster/megatron/commands.h"
#include "comm/control_line.h"
#include "comm/gpus.h"
#include "comm/run_as_rank.h"
#include "comm/store.h"
#include "forward/forward_files.h"
#include "plan/topology.h"
#include "predict/calibrate.h"
#include "run/output_files.h"
#include "run/recipe.h"

namespace braid {
namespace {

struct ForwardCommand {
  ForwardRequest request{};
  std::optional<int> dp{};
  std::string device = name_of(DeviceChoice::Auto);
  CommConfig dist{};
  bool oversubscribe = false;
};

int run(ForwardCommand command, const std::vector<std::string>& command_line) {
  ForwardRequest& request = command.request;
  request.layout.name = "model";
  // The smallest dp for which the experts can be split over the ranks.
  const ModuleConfig& layout = request.layout;
  const std::int64_t experts = std::int64_t{layout.ep} * layout.expt_tp, dense = std::int64_t{layout.tp} * layout.cp;
  const std::int64_t smallest = std::min<std::int64_t>(experts / std::gcd(experts, dense), kMaxWorldSize);
  request.layout.dp = command.dp.value_or(static_cast<int>(smallest));
  const Topology topology = check_forward(request);
  const auto spec = world_spec_from(process_env());
  if (!spec) {
    if (!command.oversubscribe) refuse_oversubscription(topology.world_size());
    if (command.dist.device == DeviceChoice::Cuda && visible_gpus() == 0) throw ConfigError(no_gpu("--device"));
    return launch_local({.ranks = topology.world_size(),
                         .command = command_line,
                         .forks_into_ranks = true,
                         .rank_coordinates = topology.all_coordinates()});
  }
  if (spec->size != topology.world_size())
    throw misuse(fmt::format("the layout has {}, but {} {} started", counted(topology.world_size(), "rank"), spec->size,
                             spec->size == 1 ? "was" : "were"),
                 "start " + counted(topology.world_size(), "rank"));
  std::string written;
  run_as_rank(*spec, command.dist, topology.all_coordinates(),
              [&](World& world) { written = forward_files(request, topology, world); });
  if (!written.empty()) {
    const std::string line = fmt::format("wrote {}\n", written);
    fmt::print("{}", spec->launcher == Launcher::Local ? to_control_lines({line}) : line);
  }
  return 0;
}

constexpr const char* kAsRank = "--collectives-as-rank";  // how this command starts itself

struct CalibrateCommand {
  std::string device, path, collectives_path;
};

// In processes of their own, as in training. The larger group tells how ranks crowd on a host with fewer cores.
void measure_processes(HardwareProfile& profile, const std::function<void(const std::string&)>& report,
                       int& exit_code) {
  std::vector<MeasuredCollective> all;
  for (const int ranks : {2, 4}) {
    report(fmt::format("measuring collectives between {} ranks (of 2 and 4)", ranks));
    const fs::path path = fs::temp_directory_path() / ("braid-calibrate-" + make_nonce());
    exit_code = launch_local({.ranks = ranks,
                              .command = {own_executable(), "plan", kPlanCalibrate.name, kAsRank, path.string()},
                              .forks_into_ranks = true,
                              .env = {{"OMP_NUM_THREADS", "1"}}});
    const CollectiveTimes measured = read_collectives(path.string());
    fs::remove(path);
    if (exit_code != 0)
      throw std::runtime_error(exit_code > 128 ? "the ranks that measure collectives were stopped"
                                               : "the ranks that measure collectives failed; their output is above");
    profile.crowding = measured.crowding;
    std::ranges::copy(at_speed_of(profile, measured), std::back_inserter(all));
  }
  fit_collectives(all, profile);
}

HardwareProfile measured_profile(DeviceChoice device, int& exit_code) {
  WorkStatus status;
  const auto report = [&](const std::string& what) {
    status.clear();
    fmt::print(stderr, "{}\n", what);
  };
  HardwareProfile profile =
      calibrate({.device = device}, report, [&](const std::string& doing, double share) { status.show(doing, share); });
  status.clear();
  const auto describe = [&](const std::string& name, std::int64_t memory_bytes) {
    profile.note = fmt::format("{}; {}", name, joined(split(version_text(), '\n'), ","));
    profile.memory_gb = static_cast<double>(memory_bytes) / 1e9;
  };
  if (device == DeviceChoice::Cuda) {
    const GpuFacts gpu = gpu_facts();
    describe(gpu.name, gpu.memory_bytes);
    profile.ranks_per_node = visible_gpus();
    return profile;
  }
  const HostCapacity host = host_capacity();
  describe("one thread per rank, fp32", host.memory_bytes);
  profile.cores = host.cores;
  profile.ranks_per_node = host.cores;
  measure_processes(profile, report, exit_code);
  return profile;
}

void calibrate_machine(const CalibrateCommand& command, int& exit_code) {
  if (!command.collectives_path.empty())
    return measure_collectives_as_rank(command.collectives_path, host_capacity().cores);
  const bool on_gpu = command.device.empty() ? visible_gpus() > 0 : command.device == "cuda";
  if (on_gpu && visible_gpus() == 0) throw ConfigError(no_gpu("--device"));
  check_outputs({{"--write", command.path, {".yaml", ".yml"}}}, {});  // before the measurement, which takes minutes
  const std::string yaml = to_yaml(measured_profile(on_gpu ? DeviceChoice::Cuda : DeviceChoice::Cpu, exit_code));
  if (command.path.empty()) return fmt::print("{}", yaml);
  write_output(command.path, yaml);
  fmt::print("written to {}; use it with --hardware {}\n", command.path, command.path);
}

// For programs that are not Braid's, which expect a store.
std::shared_ptr<void> serve_store(Fd listener) { return std::make_shared<StoreServer>(std::move(listener)); }

struct LaunchLocal {
  std::string recipe_path, log_dir;
  int ranks = 0;
  bool oversubscribe = false;
};

int gpus_here() {
  const auto list = output_of({"nvidia-smi", "-L"});
  int count = 0;
  if (list && list->exit_code == 0)
    for (const std::string& line : split(list->out, '\n')) count += line.rfind("GPU ", 0) == 0;
  return count;
}

// Like braid train, which also starts its ranks itself, but counts the GPUs first.
[[noreturn]] void launch_recipe(const LaunchLocal& launch, const std::vector<std::string>& overrides) {
  const RecipeCall call = read_recipe_call(launch.recipe_path, overrides);
  const Recipe& recipe = call.recipe;
  const Topology topology(recipe.topology, workload_of(recipe));
  const int gpus = recipe.dist.device == DeviceChoice::Cpu ? 0 : gpus_here();
  if (launch.ranks && launch.ranks != topology.world_size())
    throw ConfigError({fmt::format("the recipe has {}, not {}", counted(topology.world_size(), "rank"), launch.ranks),
                       "--ranks", "leave it out, or change the module sizes"});
  if (gpus > 0 && topology.world_size() > gpus)
    fmt::print(stderr, "braid: warning: {} ranks share {}, which is slow: NCCL needs one GPU per rank\n",
               topology.world_size(), counted(gpus, "GPU"));
  std::vector<std::string> command = {own_executable(), "train", reopenable(launch.recipe_path, call.source.text)};
  if (!launch.log_dir.empty()) command.push_back("--log-dir=" + launch.log_dir);
  if (launch.oversubscribe) command.push_back("--oversubscribe");
  command.insert(command.end(), overrides.begin(), overrides.end());
  replace_process(command);
}

int launch_words(const LaunchLocal& launch, const std::vector<std::string>& words) {
  const std::string text = command_text(words);
  std::string kept, restored;  // if a text sets torchrun's variables itself, the correct values have other names
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    kept += fmt::format("BRAID_{0}=${0} ", name);
    restored += fmt::format("{0}=\"$BRAID_{0}\" ", name);
  }
  const Phases phases = phases_of(text);
  RankCommand command = rank_command(phases.each, restored);
  if (command.has_pipe) command.text = kPipesFail + command.text;
  if (sets_rank_variables(text)) command.text = kept + "\n" + command.text;
  if (command.nodes.value_or(1) > 1)
    throw ConfigError({fmt::format("the command has --nnodes={}, but this is one machine", *command.nodes),
                       "the command", "leave --nnodes out, or use braid launch slurm"});
  int ranks = launch.ranks;
  if (!ranks) ranks = command.ranks_per_node.value_or(0);
  if (!ranks) ranks = gpus_here();
  if (!ranks)
    throw ConfigError({"the number of ranks is unknown: the command has no --nproc_per_node, and there is no GPU",
                       "--ranks", "give --ranks N"});
  if (launch.ranks && command.ranks_per_node.value_or(ranks) != ranks)
    throw ConfigError({fmt::format("--ranks {} contradicts --nproc_per_node={}", ranks, *command.ranks_per_node),
                       "--ranks", "give one of them"});
  if (!launch.oversubscribe) refuse_oversubscription(ranks);
  if (!phases.once.empty())
    if (const int failed = launch_local({.ranks = 1, .command = {"bash", "-c", kOnce + phases.once}})) return failed;
  return launch_local(
      {.ranks = ranks, .command = {"bash", "-c", command.text}, .log_dir = launch.log_dir, .serve_store = serve_store});
}

int launch_here(const LaunchLocal& launch, const Call& call) {
  const std::vector<std::string> words = words_behind_dashes(call.command_line);
  const auto overrides = parse_overrides(call.arguments, call.option_names);
  if (!words.empty() && !overrides.empty())
    throw misuse(fmt::format("--{} is a recipe key, but there is no recipe", overrides[0].path),
                 "give the command's options after --");
  if (words.empty() == launch.recipe_path.empty())
    throw misuse(words.empty() ? "there is neither a recipe nor a command" : "both a recipe and a command were given",
                 "braid launch local RECIPE ..., or braid launch local -- COMMAND");
  if (words.empty()) launch_recipe(launch, call.arguments);
  return launch_words(launch, words);
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
                  {"--device", &o->device, "cpu, cuda, or auto: cuda if there is a GPU",
                   Rules{.check = OneOf{{"auto", "cpu", "cuda"}}}},
                  {"--oversubscribe", &o->oversubscribe, kOversubscribeHelp}},
      .footer =
          "Inputs of nemotron_h: input_ids [B, S]; labels [B, S], unshifted, -100 ignored; cu_seqlens of sequences "
          "packed into one row.\n"
          "Inputs of radio: pixel_values [B, 3, H, W], or patches [P, 768] with imgs_sizes [images, 2]; features_grad, "
          "the gradient that backward starts from (default: ones).\n"
          "Outputs: logits, loss (mean over counted labels), features, and gradients as grad.<name>. A tensor has "
          "a name in the folder, in published checkpoints and in transformers; its gradient is written under each. "
          "Tensors are whole in every layout.",
      .run = [o](Call& call) {
        o->request.dtype = full_dtype_name(o->request.dtype);
        o->dist.device = choice_named<DeviceChoice>(o->device);
        call.exit_code = run(*o, call.command_line);
      }};
}

Command plan_calibrate_command() {
  const auto o = std::make_shared<CalibrateCommand>();
  return {
      .name = kPlanCalibrate.name,
      .help = kPlanCalibrate.help,
      .options = {{"--device", &o->device, "cuda or cpu; default: a GPU if there is one",
                   Rules{.check = OneOf{{"cuda", "cpu"}}}},
                  {"--write", &o->path, "write the profile to this file; default: print it"},
                  {kAsRank, &o->collectives_path, "", Rules{.hidden = true}}},
      .footer =
          "Measures how fast this machine runs Braid's operators, for two to four minutes on 2 cores, and prints a "
          "hardware profile for `braid plan simulate --hardware FILE`. Nothing else should run meanwhile. On a CPU it "
          "measures collectives between processes, too; links between GPUs are to be added to the profile of a GPU by "
          "hand.",
      .run = [o](Call& call) { calibrate_machine(*o, call.exit_code); }};
}

Command launch_local_command() {
  const auto o = std::make_shared<LaunchLocal>();
  return {.name = kLaunchLocal.name,
          .help = kLaunchLocal.help,
          .options = {{"recipe", &o->recipe_path, "recipe file; its keys may follow, as for braid train"},
                      {"--ranks", &o->ranks, "ranks (default: the recipe's, --nproc_per_node, or the GPUs here)",
                       kPositive},
                      {"--log-dir", &o->log_dir, "also add what rank N prints to rank_N.log in this folder"},
                      {"--oversubscribe", &o->oversubscribe, kOversubscribeHelp}},
          .extras = Extras::RecipeKeysOrCommand,
          .footer =
              "A torchrun command is run without torchrun: each rank gets torchrun's variables, and a rank that fails "
              "ends the run with its error.\n\n"
              "Example: braid launch local -- torchrun --nproc_per_node=8 train.py",
          .run = [o](Call& call) { call.exit_code = launch_here(*o, call); }};
}

Command run_command() {
  const auto o = std::make_shared<LaunchOptions>();
  const auto oversubscribe = std::make_shared<bool>(false);
  return {.name = kRun.name,
          .help = kRun.help,
          .options = {{"-n,--ranks", &o->ranks, "how many ranks", kRequired},
                      {"--log-dir", &o->log_dir, "also add what rank N prints to rank_N.log in this folder"},
                      {"--port", &o->port, "port of the store (default: the system chooses)",
                       Rules{.check = WholeRange{0, 65535}}},
                      {"--oversubscribe", oversubscribe.get(), kOversubscribeHelp},
                      {"command", &o->command, "program and arguments, after --", kRequired}},
          .positionals_last = true,
          .footer =
              "Each rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). "
              "The exit code is that of the first rank that failed.\n\nExample: braid run -n 4 -- python3 train.py",
          .run = [o, oversubscribe](Call& call) {
            if (!*oversubscribe) refuse_oversubscription(o->ranks);
            o->serve_store = serve_store;
            call.exit_code = launch_local(*o);
          }};
}

}  // namespace braid
