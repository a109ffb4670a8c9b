#include "support/ranks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "dist/run_as_rank.h"
#include "launch/local_launcher.h"
#include "support/programs.h"

namespace braid::testing {
namespace {

constexpr const char* kCallVariable = "BRAID_TEST_CALL";

// Which call of on_processes this is: "Suite.Test" and how many came before it in that test.
std::string next_call() {
  static std::string test;
  static int calls = 0;
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string current = std::string(info->test_suite_name()) + "." + info->name();
  if (current != test) calls = 0;
  test = current;
  return test + "#" + std::to_string(calls++);
}

[[noreturn]] void run_this_rank(const std::function<void(World&)>& body) {
  DistConfig config;
  const char* device = std::getenv("BRAID_TEST_DEVICE");
  config.device = device ? device : "cpu";
  config.hang_limit_s = 120;
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
  const int code = launch_local({.ranks = ranks,
                                 .command = {own_program(), filter, "--gtest_brief=1"},
                                 .log_dir = "",
                                 .port = 0,
                                 .places = {}});
  unsetenv(kCallVariable);
  EXPECT_EQ(code, 0) << "a rank of " << call << " failed; its output is above";
}

}  // namespace braid::testing
