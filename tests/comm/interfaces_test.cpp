#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "comm/failure_board.h"
#include "comm/world_spec.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Interfaces, HaveAnAddress) { EXPECT_EQ(address_of_interface("lo"), "127.0.0.1"); }

TEST(Interfaces, OneThatIsNotThereIsToldWithThoseThatAre) {
  EXPECT_THAT(testing::error_of<ConfigError>([] { address_of_interface("eth77"); }),
              AllOf(HasSubstr("no network interface 'eth77'"), HasSubstr("GLOO_SOCKET_IFNAME"), HasSubstr("lo")));
}

std::string serves_at(Launcher launcher, const std::string& store_host) {
  return serving_address({.launcher = launcher, .store = {store_host, 29500}});
}

TEST(ServingAddress, OfALocalWorldIsLoopback) {
  for (const char* host : {"127.0.0.1", "localhost", "192.0.2.1"})
    EXPECT_EQ(serves_at(Launcher::Local, host), "127.0.0.1") << host;
}

// 127.0.0.2 is an address of this host, 192.0.2.1 of no host.
TEST(ServingAddress, OnAClusterIsThatOfTheStoreIfItIsAnAddressOfThisHost) {
  for (const Launcher launcher : {Launcher::Torchrun, Launcher::Slurm}) {
    EXPECT_EQ(serves_at(launcher, "127.0.0.2"), "127.0.0.2");
    EXPECT_EQ(serves_at(launcher, "localhost"), "") << "a name";
    EXPECT_EQ(serves_at(launcher, "192.0.2.1"), "") << "a proxy's";
  }
}

// Others reach the board at the store's host and the board's port; at another address of this host only if it listens
// on every interface.
TEST(ServingAddress, IsWhereTheFailureBoardListens) {
  for (const std::string host : {"127.0.0.2", "localhost"}) {
    FailureBoard board({.bind_host = serves_at(Launcher::Slurm, host), .world_size = 1}, [](const RootCause&) {});
    const auto answers = [&](const std::string& address) {
      try {
        return bool(connect_tcp({address, board.port()}, std::chrono::milliseconds(100)));
      } catch (const CommError&) {
        return false;
      }
    };
    EXPECT_TRUE(answers(host));
    EXPECT_EQ(answers("127.0.0.3"), host == "localhost");
  }
}

}  // namespace
}  // namespace braid
