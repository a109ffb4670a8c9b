// How a process learns its rank. The environment is a map here; the real one is not read.
#include "comm/world_spec.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Env env_of(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

Variables with(Variables base, const Variables& changes, const std::vector<std::string>& removed = {}) {
  for (const auto& [name, value] : changes) base[name] = value;
  for (const std::string& name : removed) base.erase(name);
  return base;
}

std::string error_of(const Variables& variables) {
  return testing::error_of([&] { world_spec_from(env_of(variables)); });
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "16"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node-a"},
                             {"MASTER_PORT", "29500"}};
const Variables kSlurm = {{"SLURM_PROCID", "9"},
                          {"SLURM_NTASKS", "32"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_JOB_ID", "4242"},
                          {"SLURM_NODELIST", "pool0-[0012-0015,0020]"},
                          {"SLURM_TASKS_PER_NODE", "8(x4)"},
                          {"SLURM_STEP_ID", "0"}};

TEST(WorldSpec, NothingWithoutALauncher) { EXPECT_FALSE(world_spec_from(env_of({{"HOME", "/"}}))); }

TEST(WorldSpec, FromTorchrun) {
  const WorldSpec spec = *world_spec_from(env_of(kTorchrun));
  EXPECT_EQ(spec.launcher, Launcher::Torchrun);
  EXPECT_EQ(spec.rank, 5);
  EXPECT_EQ(spec.size, 16);
  EXPECT_EQ(spec.local_rank, 1);
  EXPECT_EQ(spec.local_size, 4);
  EXPECT_EQ(to_string(spec.store), "node-a:29500");
  EXPECT_FALSE(spec.store_is_served);
  EXPECT_TRUE(world_spec_from(env_of(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})))->store_is_served);
}

TEST(WorldSpec, GloosInterfacesAreThoseOfTheEnvironment) {
  EXPECT_TRUE(world_spec_from(env_of(kTorchrun))->gloo_interfaces.empty());
  for (const Variables& base : {kTorchrun, kSlurm})
    EXPECT_EQ(world_spec_from(env_of(with(base, {{"GLOO_SOCKET_IFNAME", "ib0,ib1"}})))->gloo_interfaces,
              (std::vector<std::string>{"ib0", "ib1"}));
}

TEST(WorldSpec, AnEmptyNumberOfThreadsIsNone) {
  for (const Variables& base : {kTorchrun, kSlurm}) {
    EXPECT_EQ(world_spec_from(env_of(base))->threads, std::nullopt);
    EXPECT_EQ(world_spec_from(env_of(with(base, {{"OMP_NUM_THREADS", ""}})))->threads, std::nullopt);
    EXPECT_EQ(world_spec_from(env_of(with(base, {{"OMP_NUM_THREADS", "0"}})))->threads, std::nullopt);
    EXPECT_EQ(world_spec_from(env_of(with(base, {{"OMP_NUM_THREADS", "4,2"}})))->threads, 4);
    EXPECT_EQ(world_spec_from(env_of(with(base, {{"OMP_NUM_THREADS", "4"}})))->threads, 4);
  }
}

TEST(WorldSpec, FromSlurm) {
  const WorldSpec spec = *world_spec_from(env_of(kSlurm));
  EXPECT_EQ(spec.launcher, Launcher::Slurm);
  EXPECT_EQ(spec.rank, 9);
  EXPECT_EQ(spec.size, 32);
  EXPECT_EQ(spec.local_rank, 1);
  EXPECT_EQ(spec.local_size, 8);
  EXPECT_EQ(spec.store.host, "pool0-0012");
}

TEST(WorldSpec, SlurmPortFollowsTheJobAndStaysOutOfTheEphemeralRange) {
  const auto port = [](const std::string& job, const std::string& step) {
    return world_spec_from(env_of(with(kSlurm, {{"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}})))->store.port;
  };
  EXPECT_EQ(port("4242", "0"), port("4242", "0"));
  EXPECT_NE(port("4242", "0"), port("4243", "0"));
  EXPECT_NE(port("4242", "0"), port("4242", "1"));
  for (const char* job : {"0", "1", "14999", "15000", "1073741824", "134217728001"}) {
    EXPECT_GE(port(job, "0"), 1024);
    EXPECT_LT(port(job, "0"), 32768);
  }
}

TEST(WorldSpec, SlurmTakesMasterAddressAndPortWhenTheScriptExportsThem) {
  const auto spec = world_spec_from(env_of(with(kSlurm, {{"MASTER_ADDR", "ib0.head"}, {"MASTER_PORT", "12345"}})));
  EXPECT_EQ(to_string(spec->store), "ib0.head:12345");
}

TEST(WorldSpec, BatchScriptWithoutSrunIsNoWorld) {
  EXPECT_FALSE(world_spec_from(env_of(with(kSlurm, {{"ENVIRONMENT", "BATCH"}}, {"SLURM_STEP_ID"}))));
}

TEST(WorldSpec, InteractiveShellsOfSlurmAreNoWorld) {
  EXPECT_FALSE(world_spec_from(env_of(with(kSlurm, {{"SLURM_PTY_PORT", "40000"}}))));
  EXPECT_FALSE(world_spec_from(env_of(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}}))));
}

TEST(WorldSpec, LocalLauncherRoundTrip) {
  WorldSpec spec;
  spec.rank = spec.local_rank = 2;
  spec.size = spec.local_size = 3;
  spec.store = {"127.0.0.1", 4000};
  spec.store_is_served = true;
  spec.board = Endpoint{"127.0.0.1", 4001};
  Variables variables = local_rank_env(spec);
  const WorldSpec back = *world_spec_from(env_of(variables));
  EXPECT_EQ(back.launcher, Launcher::Local);
  EXPECT_EQ(back.rank, 2);
  EXPECT_EQ(back.size, 3);
  EXPECT_EQ(to_string(back.store), "127.0.0.1:4000");
  EXPECT_TRUE(back.store_is_served);
  EXPECT_EQ(to_string(*back.board), "127.0.0.1:4001");
  // Inside an allocation, srun's variables are inherited and do not count.
  EXPECT_EQ(world_spec_from(env_of(with(variables, kSlurm)))->rank, 2);
  // A launcher that itself runs in a world with a store of its own.
  spec.store_is_served = false;
  spec.store_socket = 7;
  const WorldSpec inner = *world_spec_from(env_of(with(variables, local_rank_env(spec))));
  EXPECT_FALSE(inner.store_is_served);
  EXPECT_EQ(inner.store_socket, 7);
}

TEST(WorldSpec, TorchrunInsideSlurmIsTorchrunsWorld) {
  const Variables both =
      with(with(kSlurm, kTorchrun),
           {{"TORCHELASTIC_RUN_ID", "x"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NUM_NODES", "4"}});
  EXPECT_EQ(world_spec_from(env_of(both))->rank, 5);
  EXPECT_THAT(error_of(with(both, {{"SLURM_STEP_NUM_TASKS", "32"}})), HasSubstr("--ntasks-per-node=1"));
}

TEST(WorldSpec, ContradictionsAreRefused) {
  EXPECT_THAT(error_of(with(kSlurm, kTorchrun)), HasSubstr("RANK=5 contradicts SLURM_PROCID=9"));
  EXPECT_THAT(error_of(with(with(kSlurm, kTorchrun), {{"RANK", "9"}})),
              HasSubstr("WORLD_SIZE=16 contradicts SLURM_NTASKS=32"));
}

TEST(WorldSpec, MissingVariablesAreNamed) {
  for (const char* name : {"WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
    EXPECT_THAT(error_of(with(kTorchrun, {}, {name})), HasSubstr(std::string(name) + " is not set")) << name;
  for (const char* name : {"SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID"})
    EXPECT_THAT(error_of(with(kSlurm, {}, {name})), HasSubstr(std::string(name) + " is not set")) << name;
  EXPECT_THAT(error_of(with(kSlurm, {}, {"SLURM_NODELIST"})), HasSubstr("SLURM_JOB_NODELIST is not set"));
}

TEST(WorldSpec, ValuesOutOfRangeAreNamed) {
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "16"}})), HasSubstr("RANK=16 is out of range"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "-1"}})), HasSubstr("RANK='-1'"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "five"}})), HasSubstr("RANK='five' should be an integer"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"MASTER_PORT", "70000"}})), HasSubstr("MASTER_PORT='70000'"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_RANK", "4"}})), HasSubstr("LOCAL_RANK=4 is out of range"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_PROCID", "32"}})), HasSubstr("SLURM_PROCID=32 is out of range"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_NODELIST", "a["}})), HasSubstr("not a Slurm list"));
}

}  // namespace
}  // namespace braid
