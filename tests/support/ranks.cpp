#include "support/ranks.h"
#include <gtest/gtest.h>
#include <unistd.h>
#include "base/process.h"
#include "cluster/local/local_launcher.h"
#include "comm/run_as_rank.h"
#include "comm/shared_start.h"

namespace braid::testing {
namespace {

constexpr const char* kCallVariable = "BRAID_TEST_CALL";

int calls_in_this_test = 0;

struct CallCounter : ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { calls_in_this_test = 0; }
};

// A rank process that ends here never reached the call it was started for.
struct RankEnvironment : ::testing::Environment {
  void SetUp() override {
    if (std::getenv("BRAID_TEST_DEVICE")) fork_into_ranks();  // before any test uses CUDA, which a fork breaks
    ::testing::UnitTest::GetInstance()->listeners().Append(new CallCounter);
  }
  void TearDown() override {
    if (const char* wanted = std::getenv(kCallVariable)) ADD_FAILURE() << wanted << " was never reached";
  }
};
const auto* const rank_environment = ::testing::AddGlobalTestEnvironment(new RankEnvironment);

// Which call of on_processes this is: "Suite.Test" and how many came before it in that test.
std::string next_call() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("{}.{}#{}", info->test_suite_name(), info->name(), calls_in_this_test++);
}

[[noreturn]] void run_this_rank(const std::function<void(World&)>& body) {
  fork_into_ranks();
  CommConfig config;
  const char* device = std::getenv("BRAID_TEST_DEVICE");
  config.device = device ? choice_named<DeviceChoice>(device) : DeviceChoice::Cpu;
  if (const char* backend = std::getenv("BRAID_TEST_BACKEND")) config.backend = choice_named<BackendChoice>(backend);
  config.hang_limit_s = config.silence_limit_s = 120;
  run_as_rank(*world_spec_from(process_env()), config, {}, body);
  std::fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

}  // namespace

void on_processes(int ranks, const std::function<void(World&)>& body) {
  const std::string call = next_call();
  if (const char* wanted = std::getenv(kCallVariable)) {
    if (call == wanted) run_this_rank(body);
    return;
  }
  setenv(kCallVariable, call.c_str(), 1);
  const std::string filter = "--gtest_filter=" + call.substr(0, call.rfind('#'));
  const int code = launch_local(
      {.ranks = ranks, .command = {own_executable(), filter, "--gtest_brief=1"}, .forks_into_ranks = true});
  unsetenv(kCallVariable);
  EXPECT_EQ(code, 0) << "a rank of " << call << " failed; its output is above";
}

}  // namespace braid::testing
