#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/socket.h"
#include "comm/world_spec.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Under Kubernetes a name may appear after the ranks have started.
TEST(WaitForName, TriesUntilTheNameIsThereAndSaysThatItIsNot) {
  int tries = 0;
  std::string said;
  NameWait wait = {.timeout = 600s, .quiet = 0ms, .pause = 1ms};
  wait.say = [&](const std::string& text) { said += text + "\n"; };
  wait.check = [&](const std::string& host) {
    if (++tries < 4) throw UnknownHost("cannot resolve " + host);
  };
  EXPECT_LT(wait_for_name("trainer-0", wait), 600s);
  EXPECT_EQ(tries, 4);
  EXPECT_EQ(said, "cannot resolve trainer-0 yet; trying for up to 600 s (dist.connect_timeout_s)\n");
  wait.timeout = 0ms;
  tries = 0;
  EXPECT_THAT(error_of<ConfigError>([&] { wait_for_name("trainer-0", wait); }),
              AllOf(HasSubstr("cannot resolve trainer-0"), HasSubstr("MASTER_ADDR")));
  wait.timeout = 600s;
  wait.stopped = [&] { return true; };
  EXPECT_THAT(error_of<std::runtime_error>([&] { wait_for_name("trainer-0", wait); }), HasSubstr("asked to stop"));
}

}  // namespace
}  // namespace braid
