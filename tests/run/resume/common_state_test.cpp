// Numbers in a common state from another program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "run/resume/stored_state.h"
#include "support/errors.h"

namespace braid {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr std::int64_t kTooLarge = std::int64_t{1} << 31;

PickleValue common(std::int64_t iteration, std::int64_t samples) {
  return pickle_dict(
      {{"iteration", pickle(iteration)}, {"args", pickle_dict({{"consumed_train_samples", pickle(samples)}})}});
}

TEST(CommonState, RefusesNegativePositions) {
  const auto error = [](const PickleValue& value) {
    return error_of<DataError>([&] { parse_common(value, "common.pt"); });
  };
  EXPECT_EQ(parse_common(common(3, 12), "common.pt").position.consumed_samples, 12);
  EXPECT_THAT(error(common(-1, 12)), HasSubstr("common.pt: iteration -1"));
  EXPECT_THAT(error(common(3, -12)), HasSubstr("after -12 samples"));
  EXPECT_THAT(
      error(pickle_dict({{"iteration", pickle(3)}, {"opt_param_scheduler", pickle_dict({{"num_steps", pickle(-4)}})}})),
      HasSubstr("after -4 samples"));
}

TEST(CommonState, KeepsThePositionOfEachLane) {
  const std::vector<std::string> positions = {"12", "", "a lane's own \"text\""};
  EXPECT_EQ(parse_common(to_pickle({.data_positions = positions}), "common.pt").data_positions, positions);
  EXPECT_TRUE(parse_common(common(3, 12), "common.pt").data_positions.empty());
}

TEST(CommonState, HasNoNumbersThatDoNotFit) {
  const auto seed = [](std::int64_t value) { return seed_of(pickle_list({pickle_dict({{"seed", pickle(value)}})})); };
  EXPECT_EQ(seed(kTooLarge - 1), kTooLarge - 1);
  EXPECT_EQ(seed(kTooLarge), kTooLarge);
  const auto scale = [](std::int64_t growth, std::int64_t hysteresis) {
    return parse_loss_scale(pickle_dict(
        {{"scale", pickle(2.0)}, {"growth_tracker", pickle(growth)}, {"hysteresis_tracker", pickle(hysteresis)}}));
  };
  EXPECT_TRUE(scale(5, 1).has_value());
  EXPECT_FALSE(scale(kTooLarge, 1).has_value());
  EXPECT_FALSE(scale(5, -kTooLarge - 1).has_value());
}

}  // namespace
}  // namespace braid
