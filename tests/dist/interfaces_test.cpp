#include "dist/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
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

}  // namespace
}  // namespace braid
