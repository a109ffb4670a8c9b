#include "dist/run_as_rank.h"

#include <torch/cuda.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "dist/backend_factory.h"
#include "dist/failure_board.h"
#include "dist/rank_monitor.h"
#include "dist/store.h"
#include "dist/world.h"

namespace braid {
namespace {

using std::chrono::milliseconds;

void print_root_cause(const RootCause& cause) {
  fmt::print(stderr, "braid: root cause: {}\n", cause.line);
  std::fflush(stderr);
}

void end_process(const RootCause& cause) {
  print_root_cause(cause);
  std::fflush(stdout);
  _exit(1);
}

milliseconds to_ms(double seconds) { return milliseconds(static_cast<long long>(seconds * 1e3)); }

c10::Device choose_device(const WorldSpec& spec, const DistConfig& config) {
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  if (config.device == "cuda" && gpus == 0)
    throw ConfigError({fmt::format("no GPU is visible to rank {} on {}", spec.rank, host_name()),
                       "dist.device", "use cpu or auto, or a build and a machine with CUDA"});
  if (config.device == "cpu" || gpus == 0) return c10::kCPU;
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(spec.local_rank % gpus));
}

std::unique_ptr<BackendFactory> choose_backend(const WorldSpec& spec, const DistConfig& config,
                                               c10::Device device, std::shared_ptr<Store> store) {
  // The watchdog names a hang long before a collective's own time-out could hide it.
  const milliseconds timeout = to_ms(std::max(1800.0, 2 * config.hang_limit_s));
  const bool gpu_each = device.is_cuda() && spec.local_size <= static_cast<int>(torch::cuda::device_count());
  if (config.backend == "nccl" && !gpu_each)
    throw ConfigError(
        {fmt::format("nccl needs a GPU for each of the {} ranks on {}", spec.local_size, host_name()),
         "dist.backend", "use gloo or auto, or fewer ranks per host"});
  if (config.backend == "nccl" || (config.backend == "auto" && gpu_each))
    return make_nccl_factory(std::move(store), device.index(), timeout);
  return make_gloo_factory(std::move(store), spec.launcher == Launcher::Local, timeout);
}

// What a rank needs around it, in the order it comes up. Whatever the launcher does not serve, rank 0 does.
struct RankRuntime {
  std::optional<StoreServer> store_server;
  std::shared_ptr<Store> store;
  std::optional<FailureBoard> board;
  std::optional<World> world;
  std::optional<RankMonitor> monitor;
  std::optional<CrashHandler> crash_handler;

  RankRuntime(const WorldSpec& spec, const DistConfig& config, const std::vector<std::string>& places) {
    if (spec.rank == 0 && !spec.store_is_served)
      store_server.emplace(spec.launcher == Launcher::Local ? "127.0.0.1" : "", spec.store.port);
    store = std::make_shared<Store>(spec.store, to_ms(config.connect_timeout_s));
    const c10::Device device = choose_device(spec, config);
    world.emplace(spec.rank, spec.size, device, choose_backend(spec, config, device, store));

    const auto place = static_cast<std::size_t>(spec.rank);
    const RankIdentity self{spec.rank, host_name(), place < places.size() ? places[place] : ""};
    const Endpoint endpoint = spec.board ? *spec.board : share_board(spec, self, places);
    monitor.emplace(endpoint, Hello{self, spec.size, config.hang_limit_s}, world->progress(), end_process,
                    to_ms(config.connect_timeout_s));
    crash_handler.emplace(*monitor);
  }

 private:
  Endpoint share_board(const WorldSpec& spec, const RankIdentity& self,
                       const std::vector<std::string>& places) {
    const std::string key = "braid/failure_board";
    if (spec.rank != 0) return parse_endpoint(store->get(key));
    board.emplace(BoardOptions{.bind_host = "",
                               .server = self,
                               .world_size = spec.size,
                               .places = places,
                               .verdicts_follow = false},
                  [](const RootCause&) {});
    const Endpoint endpoint{spec.store.host, board->port()};
    store->set(key, to_string(endpoint));
    return endpoint;
  }
};

// Ranks finish together: one that is done early would otherwise look as if it had left.
void run_to_the_end(World& world, const std::function<void(World&)>& body) {
  const Group everyone = world.make_world_group();
  body(world);
  auto scope = world.progress().phase("finish");
  everyone.barrier();
}

int fail(RankMonitor& monitor, const std::string& message, bool consequence, int exit_code) {
  print_root_cause(monitor.report(message, consequence));
  return exit_code;
}

}  // namespace

int run_as_rank(const WorldSpec& spec, const DistConfig& config, const std::vector<std::string>& places,
                const std::function<void(World&)>& body) {
  RankRuntime runtime(spec, config, places);
  try {
    run_to_the_end(*runtime.world, body);
    runtime.monitor->goodbye();
    return 0;
  } catch (const CommError& e) {
    return fail(*runtime.monitor, e.what(), true, 1);
  } catch (const ConfigError& e) {
    return fail(*runtime.monitor, e.what(), false, 2);
  } catch (const std::exception& e) {
    return fail(*runtime.monitor, e.what(), false, 1);
  }
}

}  // namespace braid
