// Groups of real topologies, and where their sockets listen.
#include "comm/world.h"
#include <ATen/ATen.h>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>
#include "comm/backend_factory.h"
#include "comm/progress.h"
#include "comm/store.h"
#include "comm/world_spec.h"
#include "plan/topology.h"
#include "support/ranks.h"

namespace braid {
namespace {

// Nine nodes of eight ranks: eight encoder ranks and sixty-four language ranks with experts.
Topology nine_nodes() {
  TopologyConfig config;
  config.modules.resize(2);
  config.modules[0].name = "images";
  config.modules[0].kind = ModuleKind::Encoder;
  config.modules[0].dp = 8;
  config.modules[1].name = "language";
  config.modules[1].tp = 2;
  config.modules[1].dp = 16;
  config.modules[1].pp = 2;
  config.modules[1].ep = 16;
  return Topology(config, {.micro_batch = 1, .global_batch = 16, .num_experts = 128});
}

TEST(Groups, EveryGroupOfNineNodesConnectsItsOwnRanks) {
  const Topology topology = nine_nodes();
  ASSERT_EQ(topology.world_size(), 72);
  testing::on_threads(
      72,
      [&](World& world) {
        const Groups groups(world, topology);
        for (const GroupSpec& spec : topology.groups()) {
          const auto self = std::find(spec.ranks.begin(), spec.ranks.end(), world.rank());
          if (self == spec.ranks.end() || !spec.connected) continue;
          const std::size_t dot = spec.name.find('.');
          const Group& group = groups.get(spec.name.substr(0, dot), spec.name.substr(dot + 1));
          EXPECT_EQ(group.ranks(), spec.ranks);
          EXPECT_EQ(group.rank(), self - spec.ranks.begin());
          at::Tensor sum = at::full({1}, world.rank(), at::kLong);
          group.all_reduce(sum);
          EXPECT_EQ(sum.item<std::int64_t>(), std::accumulate(spec.ranks.begin(), spec.ranks.end(), 0)) << spec.name;
        }
      },
      ThreadSemantics::Strict);
}

TEST(Groups, AskingForAGroupOfAnotherModuleIsAnError) {
  const Topology topology = nine_nodes();
  EXPECT_THROW(testing::on_threads(72,
                                   [&](World& world) {
                                     const Groups groups(world, topology);
                                     if (world.rank() == 0) groups.get("language", "tp");
                                   }),
               std::logic_error);
}

TEST(Backends, NcclOnlyWhereEveryRankHasAGpuOfItsOwnUnlessToldToShare) {
  const auto fitting = [](const std::vector<std::string>& devices) { return fitting_backends(devices).front(); };
  EXPECT_EQ(fitting({"GPU-a"}), "nccl");
  EXPECT_EQ(fitting({"GPU-a", "GPU-b", "GPU-c"}), "nccl");
  EXPECT_EQ(fitting({"GPU-a", "GPU-b", "GPU-a"}), "gloo");
  EXPECT_EQ(fitting({"GPU-a", ""}), "gloo");
  EXPECT_EQ(fitting({"", ""}), "gloo");
  EXPECT_EQ(fitting_backends({"GPU-a", "GPU-a"}), (std::vector<std::string>{"gloo", "nccl-shared"}));
  EXPECT_EQ(fitting_backends({"GPU-a", ""}), std::vector<std::string>{"gloo"});
}

std::set<std::string> socket_inodes(pid_t pid) {
  std::set<std::string> inodes;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(fd.path(), ignored).string();
    if (target.rfind("socket:[", 0) == 0) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// Sockets that this process and its launcher inherited are not counted.
const std::set<std::string> inherited_inodes = socket_inodes(getpid());

// Local addresses, as the kernel writes them, of the sockets on which a process listens.
std::set<std::string> listening_addresses(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  std::set<std::string> inodes = socket_inodes(pid), addresses;
  for (const std::string& inode : inherited_inodes) inodes.erase(inode);
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream file(folder + table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, skipped, inode;
      words >> slot >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skipped;
      words >> inode;
      if (state == "0A" && inodes.count(inode)) addresses.insert(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

TEST(World, NothingListensBeyondLoopbackInLocalMode) {
  testing::on_processes(2, [](World& world) {
    world.everyone().barrier();
    EXPECT_THAT(listening_addresses(getpid()), ::testing::ElementsAre("0100007F"));  // Gloo: 127.0.0.1
    EXPECT_THAT(listening_addresses(getppid()),
                ::testing::ElementsAre("0100007F"));  // store and failure board
  });
}

std::multiset<int> policies_of_threads() {
  std::multiset<int> policies;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    policies.insert(sched_getscheduler(std::stoi(thread.path().filename())));
  return policies;
}

// Gloo's thread for sockets does not interrupt others (see gloo.cpp); those that compute stay as they are.
TEST(Gloo, OnlyTheThreadForSocketsIsPatient) {
  StoreServer server(listen_for_store("127.0.0.1", 0));
  const std::chrono::seconds timeout(60);
  auto store = std::make_shared<Store>(Endpoint{"127.0.0.1", server.port()}, timeout);
  const auto before = policies_of_threads().count(SCHED_BATCH);
  const auto gloo = gloo_backends(
      std::move(store), {.addresses = {"127.0.0.1"}, .connect_timeout = timeout, .timeout = kCollectiveTimeout});
  EXPECT_EQ(policies_of_threads().count(SCHED_BATCH), before + 1);
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
}

// The board decides when a wait is too long. Gloo's own time-out is for connecting only.
TEST(Gloo, AReceiveMayTakeLongerThanConnecting) {
  const std::chrono::seconds to_connect(2);
  StoreServer server(listen_for_store("127.0.0.1", 0));
  const auto run = [&](int rank) {
    Progress progress;
    auto store = std::make_shared<Store>(Endpoint{"127.0.0.1", server.port()}, std::chrono::seconds(60));
    const MakeBackend gloo = gloo_backends(
        std::move(store), {.addresses = {"127.0.0.1"}, .connect_timeout = to_connect, .timeout = kCollectiveTimeout});
    World world(rank, 2, c10::kCPU, gloo, progress);
    const Group all = world.everyone();
    at::Tensor x = at::full({1}, 7.f + static_cast<float>(rank));
    if (rank == 0) return all.receive(x, 1), x.item<float>();
    std::this_thread::sleep_for(to_connect + std::chrono::milliseconds(500));
    return all.send(x, 0), x.item<float>();
  };
  auto other = std::async(std::launch::async, run, 1);
  EXPECT_EQ(run(0), 8);
  other.get();
}

}  // namespace
}  // namespace braid
