// Scopes of a step clock on a track of the device, with a device whose marks are known later and a clock of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "log/step_clock.h"
#include "support/trace_events.h"

namespace braid {
namespace {

using nlohmann::json;
using testing::TemporaryFolder;
using testing::trace_events;
using testing::track_names;

// The device needs 10 ms from each mark to the next, and has passed `passed` of them.
class FakeDevice : public PhaseClock {
 public:
  explicit FakeDevice(int& passed) : passed_(passed) {}
  void mark() override { ++marks_; }
  std::vector<double> take_spans(bool wait) override {
    if (wait) passed_ = marks_;
    std::vector<double> spans(static_cast<std::size_t>(std::max(0, passed_ - 1 - taken_)), 10);
    taken_ += static_cast<int>(spans.size());
    return spans;
  }
  std::string device() const override { return "GPU"; }

 private:
  int& passed_;
  int marks_ = 0, taken_ = 0;
};

class DeviceTrackTest : public ::testing::Test {
 protected:
  std::vector<json> spans_on(const std::string& track) {
    clock_.trace().flush();
    const std::string path = trace_path(folder_.path(), 0);
    const auto names = track_names(path);
    std::vector<json> found;
    for (const json& span : trace_events(path, "X"))
      if (names.at({0, span["tid"]}) == track) found.push_back(span);
    return found;
  }

  int passed_ = 0;
  TemporaryFolder folder_;
  StepClock clock_{Trace(folder_.path(), 0, ""), std::make_unique<FakeDevice>(passed_)};
};

std::int64_t begin_of(const json& span) { return span["ts"]; }
std::int64_t end_of(const json& span) { return begin_of(span) + span["dur"].get<std::int64_t>(); }

// Marks 1 to 6: forward begins, bridge begins and ends, forward ends, backward begins and ends.
TEST_F(DeviceTrackTest, ShowsScopesAsLongAsTheDeviceTookForThem) {
  {
    const auto forward = clock_.measure(Phase::Forward, "forward", {{"microbatch", 3}});
    const auto wait = clock_.measure(Phase::BridgeWait, "bridge");
  }
  { const auto backward = clock_.measure(Phase::Backward, "backward"); }
  EXPECT_TRUE(spans_on("GPU").empty()) << "the device is not there yet";
  clock_.synchronised();
  const std::vector<json> spans = spans_on("GPU");
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0]["name"], "forward");
  EXPECT_EQ(spans[0]["args"]["microbatch"], 3);
  EXPECT_EQ(spans[1]["name"], "bridge");
  EXPECT_EQ(spans[2]["name"], "backward");
  EXPECT_NEAR(spans[0]["dur"], 30000, 1);
  EXPECT_NEAR(spans[1]["dur"], 10000, 1);
  EXPECT_NEAR(begin_of(spans[1]) - begin_of(spans[0]), 10000, 1);
  EXPECT_NEAR(begin_of(spans[2]) - end_of(spans[0]), 10000, 1);
  EXPECT_EQ(spans_on("main").size(), 3u) << "the host's";
}

// The last mark that the device has passed is now.
TEST_F(DeviceTrackTest, EndsWhereTheHostHasWaitedForTheDevice) {
  const auto now_us = [] {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  { const auto scope = clock_.measure(Phase::Forward, "forward"); }
  const std::int64_t before = now_us();
  clock_.synchronised();
  const std::int64_t end = end_of(spans_on("GPU").at(0));
  EXPECT_GE(end, before - 1000);  // the two clocks may drift apart, by far less than this
  EXPECT_LE(end, now_us() + 1000);
}

TEST_F(DeviceTrackTest, ASpanMayEndInALaterCallAndNeverBeforeItBegins) {
  {
    const auto outer = clock_.measure(Phase::Optimizer, "outer");
    { const auto inner = clock_.measure(Phase::Forward, "inner"); }
    clock_.synchronised();
    ASSERT_EQ(spans_on("GPU").size(), 1u);
  }
  clock_.timers().report(1);  // the device claims 10 ms for what took less: clocks disagree
  const std::vector<json> spans = spans_on("GPU");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[1]["name"], "outer");
  EXPECT_LE(begin_of(spans[1]), begin_of(spans[0]));
  EXPECT_GE(end_of(spans[1]), end_of(spans[0]));
}

TEST(StepClock, AHostHasNoTrackOfADevice) {
  const TemporaryFolder folder;
  {
    StepClock clock(Trace(folder.path(), 0, ""));
    const auto scope = clock.measure(Phase::Forward, "forward");
    clock.synchronised();
  }
  EXPECT_EQ(track_names(trace_path(folder.path(), 0)).size(), 1u);
}

}  // namespace
}  // namespace braid
