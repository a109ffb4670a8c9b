// A rank that communicates with its peers until one of them fails in the way that the command line requests:
//   chaos_rank KIND VICTIM MILLISECONDS HANG_LIMIT_S [SILENCE_LIMIT_S]
// KIND: throw, aten (libtorch throws), segfault, crashes (segfaults of several threads), abort, kill, stop, exit (with
// code 0), spin (hang outside any collective), kernel (hang on the GPU), skip (leave out a collective), size
// (communicate fewer elements than the others).
#include <ATen/ATen.h>
#ifdef USE_CUDA
#include <ATen/cuda/Sleep.h>
#endif
#include <signal.h>
#include <unistd.h>
#include "comm/run_as_rank.h"
#include "comm/shared_start.h"
#include "comm/world.h"
#include "plan/topology.h"
#include "tensor/copies.h"

namespace {

using namespace braid;
using Clock = std::chrono::steady_clock;

Topology make_topology() {
  TopologyConfig config;
  config.modules.resize(2);
  config.modules[0].name = "images";
  config.modules[0].kind = ModuleKind::Encoder;
  config.modules[1].name = "language";
  config.modules[1].tp = 3;
  return Topology(config, {.micro_batch = 1, .global_batch = 1, .num_experts = 0});
}

void say_when() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  fmt::print("fails at {} ms\n", std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  std::fflush(stdout);
}

bool is_own_doing(const std::string& kind) {
  return kind == "throw" || kind == "aten" || kind == "exit" || kind == "spin" || kind == "kernel" || kind == "skip" ||
         kind == "size";
}

void crash() { *static_cast<volatile int*>(nullptr) = 1; }

// Failures from another thread, wherever the rank's own thread is.
void strike(const std::string& kind) {
  if (is_own_doing(kind)) return;
  say_when();
  for (int threads = 3; kind == "crashes" && threads > 0; --threads) std::thread(crash).detach();
  if (kind == "segfault" || kind == "crashes") crash();
  if (kind == "abort") std::abort();
  if (kind == "kill") kill(getpid(), SIGKILL);
  if (kind == "stop") kill(getpid(), SIGSTOP);
}

// Failures on the rank's own thread, between two collectives.
void misbehave(const std::string& kind) {
  if (is_own_doing(kind)) say_when();
  if (kind == "throw") throw std::runtime_error("the victim threw");
  if (kind == "aten") at::ones({2}).add_(at::ones({3}));
  if (kind == "exit") std::exit(0);
  while (kind == "spin") std::this_thread::sleep_for(std::chrono::seconds(1));
#ifdef USE_CUDA
  if (kind == "kernel") at::cuda::sleep(std::int64_t{1} << 50);
#endif
}

void talk(const Group& group, int step, const std::string& fault = "") {
  const auto floats = at::TensorOptions(at::kFloat).device(group.device());
  const std::int64_t count = fault == "size" ? 999 : 1000;
  at::Tensor x = at::full({count}, static_cast<float>(step), floats);
  if (fault != "skip") group.all_reduce(x);
  at::Tensor all = at::empty({count * group.size()}, floats);
  group.all_gather(all, x);
}

}  // namespace

int main(int argc, char** argv) {
  fork_into_ranks();
  if (argc < 5) return 2;
  const std::string kind = argv[1];
  const int victim = std::atoi(argv[2]);
  const auto delay = std::chrono::milliseconds(std::atoi(argv[3]));
  const Topology topology = make_topology();
  CommConfig config;
  const char *device = std::getenv("BRAID_TEST_DEVICE"), *backend = std::getenv("BRAID_TEST_BACKEND");
  config.device = device ? choice_named<DeviceChoice>(device) : DeviceChoice::Cpu;
  if (backend) config.backend = choice_named<BackendChoice>(backend);
  config.hang_limit_s = std::atof(argv[4]);
  config.silence_limit_s = std::atof(argv[argc > 5 ? 5 : 4]);

  run_as_rank(*world_spec_from(process_env()), config, topology.all_coordinates(), [&](World& world) {
    const Groups groups(world, topology);
    groups.world().barrier();
    if (world.rank() == 0) fmt::print("all have met\n"), std::fflush(stdout);
    const auto time = Clock::now() + delay;
    const bool is_victim = world.rank() == victim;
    if (is_victim)
      std::thread([=] {
        std::this_thread::sleep_until(time);
        strike(kind);
      }).detach();
    for (int step = 1; Clock::now() < time + std::chrono::seconds(120); ++step) {
      auto scope = world.progress().phase(fmt::format("iteration {}", step));
      if (step % world.size() == world.rank())  // the others wait for it in a collective, and leave the CPU idle
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      at::Tensor x = at::ones({1000}, at::TensorOptions().device(world.device()));
      Pending under_way = groups.world().start_all_reduce(x);
      const bool fails = is_victim && Clock::now() >= time;
      if (fails) misbehave(kind);
      if (world.rank() > 0) talk(groups.get("language", "tp"), step);
      talk(groups.world(), step, fails ? kind : "");
      under_way.wait();
      to_host(x);  // the host waits for its GPU once in a step, as in training
    }
  });
}
