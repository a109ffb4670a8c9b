#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "run/resume/stored_state.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

// The name of a checkpoint's schedule is shown without terminal control sequences, and an unknown one is refused.
TEST(ResumeChecks, ASchedulesStyleMustBeKnown) {
  const LrSchedule own = {.lr_decay_steps = 100, .lr_decay_style = "cosine"};
  const auto error = [&](ResumeWith whose, const ScheduleState& stored) {
    return error_of<ConfigError>([&] { check_schedule(own, stored, {.scheduler = whose}, "ckpt"); });
  };
  const ScheduleState strange = {{"lr_decay_style", std::string("new\x1b[31m")}};
  EXPECT_THAT(error(ResumeWith::Same, strange), AllOf(HasSubstr("lr_decay_style is 'new"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(error(ResumeWith::Checkpoint, strange), AllOf(HasSubstr("lr_decay_style is 'new"), Not(HasSubstr("\x1b")),
                                                            HasSubstr("--override-opt-param-scheduler")));
  EXPECT_EQ(error(ResumeWith::Recipe, strange), "no error");
  EXPECT_EQ(error(ResumeWith::Checkpoint, {{"lr_decay_style", std::string("linear")}}), "no error");
  EXPECT_THAT(error(ResumeWith::Checkpoint, {{"lr_decay_style", std::string("WSD")}}), HasSubstr("decay phase"));
  EXPECT_THAT(error(ResumeWith::Checkpoint, {{"wd_incr_style", std::string("up")}}),
              HasSubstr("wd_incr_style is 'up'"));
  EXPECT_THAT(error(ResumeWith::Checkpoint, {{"lr_decay_steps", std::int64_t{0}}}), HasSubstr("lr_decay_steps=0"));
}

}  // namespace
}  // namespace braid
