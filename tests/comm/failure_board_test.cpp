// The board's judgement, with ranks simulated by monitors in this process.
#include "comm/failure_board.h"
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/socket.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

const char* const kNonce = "of this run";

Hello hello_of(int rank, int world_size) {
  return {.who = {rank, "host" + std::to_string(rank), ""},
          .world_size = world_size,
          .hang_limit_s = 60,
          .silence_limit_s = 60,
          .connect_timeout_s = 60,
          .nonce = kNonce};
}

struct FakeRank {
  Progress progress;
  std::promise<RootCause> heard;
  std::unique_ptr<RankMonitor> monitor;

  FakeRank(int rank, const FailureBoard& board, int world_size, double hang_limit_s = 60, double connect_timeout_s = 60)
      : FakeRank(board.port(), Hello{{rank, "host" + std::to_string(rank), "m[tp=" + std::to_string(rank) + "]"},
                                     world_size,
                                     hang_limit_s,
                                     hang_limit_s,
                                     connect_timeout_s,
                                     kNonce}) {}
  FakeRank(int port, const Hello& hello, std::function<void(const RootCause&)> on_failure = {})
      : monitor(std::make_unique<RankMonitor>(
            Endpoint{"127.0.0.1", port}, hello, progress,
            [this, on_failure](const RootCause& cause) {
              heard.set_value(cause);
              if (on_failure) on_failure(cause);
            },
            5s)) {}

  RootCause root_cause() { return heard.get_future().get(); }
};

BoardOptions for_ranks(int ranks) {
  return {.bind_host = "127.0.0.1",
          .server = {-1, "launcher", ""},
          .world_size = ranks,
          .rank_coordinates = {},
          .ends_follow = false,
          .nonce = kNonce};
}

TEST(FailureBoard, EveryRankHearsTheSameLine) {
  std::promise<RootCause> at_board;
  FailureBoard board(for_ranks(3), [&](const RootCause& cause) { at_board.set_value(cause); });
  FakeRank a(0, board, 3), b(1, board, 3), c(2, board, 3);
  auto scope = b.progress.phase("iteration 7");
  const RootCause own = b.monitor->report("disk is full\nsecond line", false);
  EXPECT_EQ(own.rank, 1);
  EXPECT_EQ(own.line, "rank 1 (host host1, m[tp=1]) failed in iteration 7: disk is full; second line");
  EXPECT_EQ(a.root_cause().line, own.line);
  EXPECT_EQ(c.root_cause().line, own.line);
  EXPECT_EQ(at_board.get_future().get().line, own.line);
}

TEST(FailureBoard, AConnectionThatEndsWithoutGoodbyeIsADeath) {
  FailureBoard board(for_ranks(2), [](const RootCause&) {});
  FakeRank a(0, board, 2);
  {
    FakeRank b(1, board, 2);
    std::this_thread::sleep_for(100ms);
  }
  EXPECT_THAT(a.root_cause().line,
              AllOf(HasSubstr("rank 1 (host host1, m[tp=1])"), HasSubstr("ended without finishing")));
}

TEST(FailureBoard, GoodbyesAreNoFailure) {
  FailureBoard board(for_ranks(1), [](const RootCause&) {});
  {
    FakeRank a(0, board, 1);
    a.monitor->goodbye();
  }
  board.process_ended({0, "exited with code 0", false});
  board.finish();
  EXPECT_FALSE(board.root_cause());
}

// A bye just before the end of the process is never overtaken by the report of the end.
TEST(FailureBoard, AQuickEndAfterAGoodbyeIsNoFailure) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    BoardOptions options = for_ranks(1);
    options.ends_follow = true;
    FailureBoard board(options, [](const RootCause&) {});
    FakeRank a(0, board, 1);
    std::this_thread::sleep_for(2ms);
    a.monitor->goodbye();
    board.process_ended({0, "exited with code 0", false});
    std::this_thread::sleep_for(1ms);
    board.finish();
    ASSERT_FALSE(board.root_cause()) << board.root_cause()->line;
  }
}

// On a busy machine the report of an end can overtake the rank's last messages on their way through the kernel.
TEST(FailureBoard, TheEndOfAProcessIsJudgedAfterItsLastMessages) {
  for (const bool fails : {false, true}) {
    BoardOptions options = for_ranks(1);
    options.ends_follow = true;
    FailureBoard board(options, [](const RootCause&) {});
    Fd rank = connect_tcp({"127.0.0.1", board.port()}, 1s);
    send_some(rank, encode(hello_of(0, 1)), 1s);
    std::this_thread::sleep_for(100ms);
    board.process_ended({0, fmt::format("exited with code {}", fails ? 1 : 0), fails});
    auto finished = std::async(std::launch::async, [&] { board.finish(); });
    std::this_thread::sleep_for(300ms);
    send_some(rank, encode(fails ? BoardMessage(Fail{"iteration 3", "out of memory"}) : BoardMessage(Bye{})), 1s);
    rank = Fd();
    finished.get();
    if (fails)
      EXPECT_THAT(board.root_cause().value().line, HasSubstr("failed in iteration 3: out of memory"));
    else
      EXPECT_FALSE(board.root_cause());
  }
}

// When a rank ends, neither side may have read the other's last messages. Closing the connection would then discard the
// goodbye, and the launcher would call the end of a finished run a failure.
TEST(RankMonitor, AGoodbyeArrivesThoughTheBoardIsBusy) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  FakeRank rank(local_port(listener), hello_of(0, 1));
  MessageSocket board(Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
  board.send(Welcome{{-1, "launcher", ""}}, 1s);
  // Long beats fill what the board's kernel stores of unread messages.
  auto scope = rank.progress.phase(std::string(60'000, 'x'));
  std::this_thread::sleep_for(1s);
  std::atomic<bool> ended = false;
  auto end = std::async(std::launch::async, [&] {
    rank.monitor->goodbye();
    rank.monitor.reset();
    ended = true;
  });
  for (const auto start = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() < start + 500ms;)
    board.send(Tick{}, 0ms), std::this_thread::sleep_for(1ms);
  bool said_goodbye = false;
  while (!ended && !said_goodbye) {
    board.receive([&](const BoardMessage& message) { said_goodbye |= std::holds_alternative<Bye>(message); });
    if (!board.is_open()) break;
  }
  EXPECT_TRUE(said_goodbye);
  board.send(Close{}, 1s);
  end.get();
}

// Until the connect time-out, a rank that has not joined is late, not hung.
TEST(FailureBoard, LateRanksGetTheTimeToConnect) {
  FailureBoard board(for_ranks(2), [](const RootCause&) {});
  FakeRank a(0, board, 2, 0.5);
  std::this_thread::sleep_for(2s);
  EXPECT_FALSE(board.root_cause());
  a.monitor->goodbye();
}

TEST(FailureBoard, RanksThatNeverComeAreAllNamed) {
  FailureBoard board(for_ranks(4), [](const RootCause&) {});
  FakeRank a(1, board, 4, 60, 0.5);
  EXPECT_THAT(a.root_cause().line, HasSubstr("ranks 0,2-3 did not join the run within 0.5 s"));
}

// A collective breaks on rank 0 because rank 1 died; the death is known a moment later and is the cause.
TEST(FailureBoard, ABrokenCollectiveWaitsForABetterExplanation) {
  FailureBoard board(for_ranks(3), [](const RootCause&) {});
  FakeRank a(0, board, 3), c(2, board, 3);
  auto b = std::make_unique<FakeRank>(1, board, 3);
  auto reported = std::async(std::launch::async, [&] { return a.monitor->report("connection closed by peer", true); });
  std::this_thread::sleep_for(300ms);
  b.reset();
  EXPECT_EQ(reported.get().rank, 1);
  EXPECT_EQ(c.root_cause().rank, 1);
}

TEST(FailureBoard, ABrokenCollectiveIsTheCauseWhenNothingBetterComes) {
  FailureBoard board(for_ranks(2), [](const RootCause&) {});
  FakeRank a(0, board, 2), b(1, board, 2);
  EXPECT_EQ(a.monitor->report("connection reset", true).rank, 0);
  EXPECT_THAT(b.root_cause().line, HasSubstr("connection reset"));
}

TEST(FailureBoard, TheParentsWordSaysHowAProcessEnded) {
  BoardOptions options = for_ranks(2);
  options.ends_follow = true;
  FailureBoard board(options, [](const RootCause&) {});
  FakeRank a(0, board, 2);
  auto b = std::make_unique<FakeRank>(1, board, 2);
  std::this_thread::sleep_for(100ms);
  b.reset();
  board.process_ended({1, "exited with code 0", false});
  EXPECT_THAT(a.root_cause().line, HasSubstr("rank 1 (host host1, m[tp=1]) failed in code outside of any operation: "
                                             "exited with code 0 before the run was over"));
}

TEST(FailureBoard, AProcessThatNeverJoinedIsNamedFromThePlan) {
  BoardOptions options = for_ranks(2);
  options.rank_coordinates = {"a[tp=0]", "b[tp=0]"};
  options.ends_follow = true;
  FailureBoard board(options, [](const RootCause&) {});
  board.process_ended({1, "exited with code 127", true});
  board.finish();
  EXPECT_THAT(board.root_cause()->line, AllOf(HasSubstr("b[tp=0]"), HasSubstr("start-up"), HasSubstr("code 127")));
}

TEST(FailureBoard, ARankThatStopsMovingIsNamedWithThoseWhoWait) {
  FailureBoard board(for_ranks(2), [](const RootCause&) {});
  FakeRank a(0, board, 2, 1.5), b(1, board, 2, 1.5);
  auto waiting = a.progress.meet("all_reduce", {{"world", {0, 1}}});
  auto stuck = b.progress.phase("iteration 9");
  EXPECT_THAT(a.root_cause().line, AllOf(HasSubstr("rank 1"), HasSubstr("iteration 9"), HasSubstr("no progress"),
                                         HasSubstr("rank 0 in all_reduce #1 on world")));
}

// If rank 0 serves the board and dies, the others only know that it is gone, and all print the same line.
TEST(RankMonitor, TheLossOfTheBoardIsTheLossOfTheRankThatServedIt) {
  Fd listener = listen_tcp("127.0.0.1", 0);
  FakeRank a(local_port(listener), hello_of(1, 2));
  {
    Fd served(accept(listener.get(), nullptr, nullptr));
    send_some(served, encode(Welcome{{0, "head", "m[tp=0]"}}), 1s);
    std::this_thread::sleep_for(100ms);
  }
  EXPECT_THAT(a.root_cause().line,
              AllOf(HasSubstr("rank 0 (host head, m[tp=0])"), HasSubstr("ended without finishing")));
}

// A second thread of rank 0 crashes because rank 1 has failed. It must not end the process before on_failure has
// printed the line.
TEST(RankMonitor, ACrashInAPeersWakeWaitsForTheLine) {
  FailureBoard board(for_ranks(2), [](const RootCause&) {});
  std::promise<void> printed;
  FakeRank a(board.port(), hello_of(0, 2), [&](const RootCause&) { printed.get_future().wait(); });
  FakeRank b(1, board, 2);
  b.monitor->report("disk is full", false);
  EXPECT_EQ(a.root_cause().rank, 1);
  auto crash = std::async(std::launch::async, [&] { a.monitor->publish_fatal_signal(SIGSEGV); });
  EXPECT_EQ(crash.wait_for(300ms), std::future_status::timeout);
  printed.set_value();
  crash.get();
}

// Returns once the thread has set its id and sleeps in its next call.
void wait_until_asleep(const std::atomic<pid_t>& thread) {
  const auto asleep = [&] {
    const std::string stat = testing::read_file(fmt::format("/proc/self/task/{}/stat", thread.load()));
    return stat.substr(stat.rfind(')') + 2, 1) == "S";
  };
  while (thread == 0 || !asleep()) std::this_thread::sleep_for(10ms);
}

// Rank 0's collective fails because rank 1 has failed, and another thread of rank 0 crashes meanwhile: the thread that
// has reported prints the line and ends the process.
TEST(RankMonitor, ACrashBesideAReportWaitsForTheLine) {
  FailureBoard board(for_ranks(2), [](const RootCause&) {});
  FakeRank a(0, board, 2), b(1, board, 2);
  std::atomic<pid_t> reporter = 0;
  auto report = std::async(std::launch::async, [&] {
    reporter = gettid();
    return a.monitor->report("connection closed by peer", true);
  });
  wait_until_asleep(reporter);  // in report(), which waits for the board's answer
  auto crash = std::async(std::launch::async, [&] { a.monitor->publish_fatal_signal(SIGSEGV); });
  b.monitor->report("disk is full", false);
  EXPECT_EQ(report.get().rank, 1);
  EXPECT_EQ(crash.wait_for(300ms), std::future_status::timeout);
  a.monitor->goodbye();
}

TEST(FailureBoard, RanksOfAnotherRunAreNotTaken) {
  FailureBoard board(for_ranks(2), [](const RootCause&) {});
  FakeRank a(0, board, 2);
  Hello other = hello_of(1, 2);
  other.nonce = "of another run";
  FakeRank stranger(board.port(), other);
  EXPECT_THAT(stranger.root_cause().line, HasSubstr("did not accept this rank"));
  EXPECT_FALSE(board.root_cause());  // its end is not a loss
  a.monitor->goodbye();
  board.finish();
}

// A rank that reads nothing for a while receives the rest of a line as soon as it reads again.
TEST(FailureBoard, ALineThatWasCutIsFinishedWhenThereIsRoom) {
  std::promise<void> given_up;  // the board tells its owner after waiting for the rank
  FailureBoard board(for_ranks(1), [&](const RootCause&) { given_up.set_value(); });
  const Fd socket = connect_tcp({"127.0.0.1", board.port()}, 5s);
  send_some(socket, encode(hello_of(0, 1)), 5s);
  pollfd entry = {socket.get(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 60000), 1);  // its welcome: the rank has joined
  const int small = 1 << 16;
  ASSERT_EQ(setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  const std::string how(std::size_t{32} << 20, 'x');  // more than the board's own buffer holds
  board.process_ended({0, how, true});
  given_up.get_future().wait();
  std::string got;
  std::vector<char> buffer(std::size_t{1} << 20);
  while (got.find("xxx\"") == got.npos && poll(&entry, 1, 20000) == 1)
    got = got.substr(got.size() - std::min<std::size_t>(got.size(), 10)) +
          std::string(buffer.data(), static_cast<std::size_t>(
                                         std::max<ssize_t>(recv(socket.get(), buffer.data(), buffer.size(), 0), 0)));
  EXPECT_TRUE(got.find("xxx\"") != got.npos) << "the line has no end";
}

// Two hosts of two ranks: the ranks of host b fall silent at once, and every rank of host a learns which host it is.
TEST(FailureBoard, AHostWhoseRanksAllFallSilentIsNamed) {
  BoardOptions options = for_ranks(4);
  options.server = {0, "a", ""};
  FailureBoard board(options, [](const RootCause&) {});
  const auto hello = [](int rank) {
    Hello hello = hello_of(rank, 4);
    hello.who.host = rank < 2 ? "a" : "b";
    hello.silence_limit_s = 1.5;
    return hello;
  };
  const Fd third = connect_tcp({"127.0.0.1", board.port()}, 5s), fourth = connect_tcp({"127.0.0.1", board.port()}, 5s);
  send_some(third, encode(hello(2)), 5s);
  send_some(fourth, encode(hello(3)), 5s);
  FakeRank first(board.port(), hello(0)), second(board.port(), hello(1));
  for (FakeRank* rank : {&first, &second})
    EXPECT_EQ(rank->root_cause().line,
              "host b (ranks 2-3) cannot be reached from host a: no heartbeat for more than 1.5 s");
}

// The reverse: the ranks of host b hear nothing from the board on host a.
TEST(RankMonitor, TheHostOfASilentBoardIsNamed) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  Hello hello = hello_of(2, 4);
  hello.silence_limit_s = 0.5;
  FakeRank rank(local_port(listener), hello);
  const Fd board(accept(listener.get(), nullptr, nullptr));
  send_some(board, encode(Welcome{{0, "a", ""}}) + encode(Hosts{{{"a", {0, 1}}, {"host2", {2, 3}}}}), 1s);
  EXPECT_EQ(rank.root_cause().line,
            "host a (ranks 0-1) cannot be reached from host host2: no heartbeat for more than 0.5 s");
}

// A board that has stopped reading, or whose host is gone, soon accepts no more beats. Sending them must not keep the
// monitor from noticing the silence. Long beats fill the socket within a second.
TEST(RankMonitor, ASilentBoardIsNoticedThoughItTakesNoMoreBeats) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  Hello hello = hello_of(1, 2);
  hello.silence_limit_s = 0.5;
  FakeRank rank(local_port(listener), hello);
  const auto scope = rank.progress.phase(std::string(1 << 20, 'x'));
  const Fd board(accept(listener.get(), nullptr, nullptr));
  send_some(board, encode(Welcome{{0, "a", ""}}), 1s);
  auto heard = rank.heard.get_future();
  ASSERT_EQ(heard.wait_for(60s), std::future_status::ready);
  EXPECT_THAT(heard.get().line, HasSubstr("no heartbeat for more than 0.5 s"));
}

TEST(BoardMessages, StrangersDoNotDisturb) {
  FailureBoard board(for_ranks(1), [](const RootCause&) {});
  const Fd stranger = connect_tcp({"127.0.0.1", board.port()}, 1s);
  send_some(stranger,
            "GET / "
            "HTTP/"
            "1.1\r\n\r\n{\"type\":\"fail\"}\n{\"type\":\"hello\",\"who\":{\"rank\":99,\"host\":\"\",\"place\":"
            "\"\"},\"world_size\":1,\"hang_limit_s\":1,\"connect_timeout_s\":1}\n",
            1s);
  send_some(stranger, std::string(2 << 20, 'x'), 1s);
  FakeRank a(0, board, 1);
  a.monitor->goodbye();
  board.finish();
  EXPECT_FALSE(board.root_cause());
}

TEST(BoardMessages, SurviveTheWire) {
  RankStatus status;
  status.op = "x \"quoted\" \xff";
  status.waits = {{{"c", {1, 2}}, 3}};
  status.arrivals = {{"c", 3}};
  const MeetingKey key = meeting_key("c", {1, 2});
  for (int i = 0; i < 300; ++i) status.records[key].add("all_reduce of " + std::to_string(i));
  std::string line = encode(Beat{status});
  line.pop_back();
  const auto back = std::get<Beat>(*decode(line)).status;
  EXPECT_THAT(back.op, HasSubstr("\"quoted\""));
  EXPECT_EQ(back.waits.at(0).meeting.members, status.waits.at(0).meeting.members);
  EXPECT_EQ(back.arrivals, status.arrivals);
  EXPECT_EQ(back.records.at(key).marks_by_arrival(), status.records.at(key).marks_by_arrival());
  EXPECT_EQ(back.records.at(key).content_of(299), "all_reduce of 298");
  EXPECT_FALSE(decode("{}"));
  EXPECT_FALSE(decode("[1,2"));
}

}  // namespace
}  // namespace braid
