// Time that a step waits for a slow source is a phase of its own, on the ranks that read from that source. Delays are
// injected; only the longest phase is compared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "comm/world.h"
#include "data/batches/mock_data.h"
#include "support/programs.h"
#include "support/ranks.h"
#include "train/training_run.h"

namespace braid {
namespace {

using Delay = std::chrono::milliseconds;

// Per sample.
struct Delays {
  Delay text{0}, pictures{0};
};

class SlowSamples : public SampleSource {
 public:
  SlowSamples(std::unique_ptr<SampleSource> samples, const Delays& delays)
      : samples_(std::move(samples)), delays_(delays) {}

  Tokens tokens(std::int64_t sample) const override {
    std::this_thread::sleep_for(delays_.text);
    return samples_->tokens(sample);
  }
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override {
    std::this_thread::sleep_for(delays_.pictures);
    return samples_->media(encoder, sample);
  }

 private:
  const std::unique_ptr<SampleSource> samples_;
  const Delays delays_;
};

// Phases of the second and third step, by rank: one of images, one of the language module.
std::vector<PhaseReport> phases_of(const Delays& delays, const std::string& trace_folder) {
  const testing::TrainingLayout layout = {.micro_batch = 2, .global_batch = 4};
  const Topology topology = testing::topology_of(layout);
  const Provider provider = layout.provider();
  const SlowSamples samples(testing::mock(testing::mixed_data())(provider, topology), delays);
  std::vector<PhaseReport> reports(2);
  testing::on_threads(topology.world_size(), [&](World& world) {
    const auto data = make_sample_batches(samples, media_tokens(provider, topology));
    const Groups groups(world, topology);
    Training training(provider, topology, groups, world, testing::config_of(layout));
    training.read_from(*data, 0);
    StepClock clock(Trace(trace_folder, world.rank(), ""));
    const auto step = [&] { training.step(clock, [] { return StopReason::None; }); };
    step();
    clock.timers().report(1);
    for (int i = 0; i < 2; ++i) step();
    reports[static_cast<std::size_t>(world.rank())] = clock.timers().report(2);
  });
  return reports;
}

Phase longest(const PhaseReport& report) {
  return static_cast<Phase>(std::max_element(report.phase_ms.begin(), report.phase_ms.end()) - report.phase_ms.begin());
}

// A busy machine can make any phase longer than a given delay, so the delay doubles until the phases are as expected.
// If the wait counts as another phase, no delay is long enough and the test fails.
std::vector<Phase> longest_phases(const Delays& per_unit, const std::vector<Phase>& expected,
                                  const std::string& trace_folder) {
  std::vector<Phase> longest_by_rank;
  for (int factor = 1; factor <= 32 && longest_by_rank != expected; factor *= 2) {
    const Delays delays = {.text = per_unit.text * factor, .pictures = per_unit.pictures * factor};
    const std::vector<PhaseReport> reports = phases_of(delays, trace_folder);
    longest_by_rank = {longest(reports[0]), longest(reports[1])};
  }
  return longest_by_rank;
}

TEST(DataWait, IsTheLongestPhaseOfTheModuleWhoseDataIsSlow) {
  const testing::TemporaryFolder folder;
  // The encoder's rank waits for the language module's.
  const std::vector<Phase> slow_text = {Phase::PipelineWait, Phase::DataWait};
  EXPECT_EQ(longest_phases({.text = Delay(50)}, slow_text, folder.path()), slow_text);
  for (const char* file : {"/trace_rank_00000.json", "/trace_rank_00001.json"})
    EXPECT_THAT(testing::read_file(folder.path() + file), ::testing::HasSubstr("\"data wait\""));

  const std::vector<Phase> slow_pictures = {Phase::DataWait, Phase::PipelineWait};
  EXPECT_EQ(longest_phases({.pictures = Delay(50)}, slow_pictures, folder.path()), slow_pictures);
}

TEST(DataWait, IsNotTheLongestPhaseWithoutDelays) {
  const testing::TemporaryFolder folder;
  for (const PhaseReport& report : phases_of({}, folder.path())) EXPECT_NE(longest(report), Phase::DataWait);
}

}  // namespace
}  // namespace braid
