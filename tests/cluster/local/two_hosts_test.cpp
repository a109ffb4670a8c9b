// Ranks on two hosts, which are network namespaces of this machine (support/two_hosts.sh).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::built_program;
using ::testing::HasSubstr;
using testing::read_file;
using testing::run_program;
using testing::TemporaryFolder;

constexpr int kRanks = 4;

// How to create namespaces here: as root, or as a user who becomes root in a user namespace. Empty if not allowed.
std::vector<std::string> own_namespaces() {
  for (const std::vector<std::string>& options : {std::vector<std::string>{}, {"--user", "--map-root-user"}}) {
    std::vector<std::string> command = {"unshare", "--net", "--uts", "--mount"};
    command.insert(command.end(), options.begin(), options.end());
    std::vector<std::string> attempt = command;
    for (const char* word :
         {"bash", "-c",
          "hostname h && mount --bind /etc/hosts /etc/hosts && ip link add veth-a type veth peer name veth-b && "
          "unshare --net true && nsenter --version"})
      attempt.push_back(word);
    try {
      if (run_program(attempt).exit_code == 0) return command;
    } catch (const std::exception&) {  // no unshare
    }
  }
  return {};
}

class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    namespaces_ = own_namespaces();
    if (namespaces_.empty()) GTEST_SKIP() << "network namespaces are not allowed here, or iproute2 is missing";
  }

  // The ranks exchange data until the cable is pulled.
  void run(const std::vector<std::string>& limits, const std::map<std::string, std::string>& env = {}) {
    std::vector<std::string> command = namespaces_;
    // Any port is free in a new namespace.
    for (const std::string& word :
         {std::string(BRAID_SOURCE_DIR) + "/tests/support/two_hosts.sh", folder_.path(), std::string("29500"),
          built_program("chaos_rank"), std::string("exit"), std::string("-1"), std::string("0")})
      command.push_back(word);
    command.insert(command.end(), limits.begin(), limits.end());
    const auto finished = run_program(command, env);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
  }

  std::string log_of(int rank) const { return read_file(folder_.path() + "/rank_" + std::to_string(rank) + ".log"); }
  std::string code_of(int rank) const { return read_file(folder_.path() + "/rank_" + std::to_string(rank) + ".code"); }

 private:
  TemporaryFolder folder_;
  std::vector<std::string> namespaces_;
};

// Each host's own name resolves to 127.0.1.1; the rendezvous works anyway. When the cable is pulled, each side names
// the other, long before the hang limit.
TEST_F(TwoHosts, MeetAndNameEachOtherWhenTheCableIsPulled) {
  run({/*hang limit=*/"300", /*silence limit=*/"5"});
  EXPECT_THAT(log_of(0), HasSubstr("all have met"));
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(code_of(rank), "1\n");
    EXPECT_THAT(log_of(rank), HasSubstr(std::string("braid: root cause: ") +
                                        (rank < 2 ? "host nodeb (ranks 2-3) cannot be reached from host nodea"
                                                  : "host nodea (ranks 0-1) cannot be reached from host nodeb") +
                                        ": no heartbeat for more than 5 s\n"))
        << "rank " << rank;
  }
}

// If the other hosts cannot be reached on the chosen interface, the error names the unreachable address.
TEST_F(TwoHosts, TheChosenInterfaceIsUsedAndItsAddressNamed) {
  run({/*hang limit=*/"8"}, {{"GLOO_SOCKET_IFNAME", "lo"}});
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(code_of(rank), "1\n");
    EXPECT_THAT(log_of(rank),
                AllOf(HasSubstr("braid: root cause: rank "), HasSubstr("127.0.0.1"), HasSubstr("GLOO_SOCKET_IFNAME")))
        << "rank " << rank;
  }
}

}  // namespace
}  // namespace braid
