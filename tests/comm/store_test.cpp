#include "comm/store.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "comm/world_spec.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

TEST(Store, CarriesValues) {
  StoreServer server(listen_for_store("127.0.0.1", 0));
  Store a({"127.0.0.1", server.port()}, 10s), b({"127.0.0.1", server.port()}, 10s);
  a.set("key", "value");
  EXPECT_EQ(b.get("key"), "value");
}

TEST(Store, BusyPortIsAClearError) {
  const Fd other = listen_tcp("127.0.0.1", 0);
  const std::string error = error_of<std::exception>([&] { listen_for_store("127.0.0.1", local_port(other)); });
  EXPECT_THAT(error,
              AllOf(HasSubstr(std::to_string(local_port(other))), HasSubstr("in use"), HasSubstr("MASTER_PORT")));
}

TEST(Store, NobodyListening) {
  Fd listener = listen_tcp("127.0.0.1", 0);
  const int port = local_port(listener);
  listener = Fd();
  EXPECT_THAT(error_of<std::exception>([&] {
                Store({"127.0.0.1", port}, 500ms);
              }),
              HasSubstr("127.0.0.1:" + std::to_string(port)));
}

// A server that accepts but never sends anything.
TEST(Store, SilentServerTimesOutWithItsAddress) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  EXPECT_THAT(
      error_of<std::exception>([&] {
        Store({"127.0.0.1", local_port(listener)}, 2s);
      }),
      AllOf(HasSubstr("127.0.0.1:" + std::to_string(local_port(listener))), HasSubstr("does not answer within 2.0 s")));
}

TEST(Store, KeyThatNeverComes) {
  StoreServer server(listen_for_store("127.0.0.1", 0));
  Store store({"127.0.0.1", server.port()}, 500ms);
  EXPECT_THAT(error_of<std::exception>([&] { store.get("missing"); }),
              AllOf(HasSubstr("missing"), HasSubstr("127.0.0.1")));
}

// The error is reported long before the connect time-out.
TEST(Store, UnknownHost) {
  EXPECT_THAT(error_of<ConfigError>([&] {
                Store({"no-such-host.invalid", 1}, 900s);
              }),
              AllOf(HasSubstr("cannot resolve host 'no-such-host.invalid' from host "), HasSubstr("MASTER_ADDR"),
                    Not(HasSubstr("900"))));
}

TEST(Store, KnowsTheAddressesOnTheWay) {
  StoreServer server(listen_for_store("127.0.0.1", 0));
  const Store store({"127.0.0.1", server.port()}, 10s);
  EXPECT_EQ(store.route().local, "127.0.0.1");
  EXPECT_EQ(store.route().peer, "127.0.0.1");
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_FALSE(is_loopback("10.0.0.7"));
}

}  // namespace
}  // namespace braid
