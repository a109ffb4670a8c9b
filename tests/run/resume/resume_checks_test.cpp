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

// --- checkpoint.init

std::string problems_of(const CheckpointConfig& config) {
  std::string text;
  for (const Problem& problem : validate(config)) text += fmt::format("{}: {}\n", problem.where, problem.what);
  return text;
}

TEST(Init, NamesOneSourceForEachModule) {
  for (const InitConfig& init : std::vector<InitConfig>{
           {.nemotron = "n"}, {.vision = "v"}, {.language = "l"}, {.vision = "v", .language = "l"}, {.finetune = "f"}})
    EXPECT_EQ(problems_of({.save = "ckpt", .init = init, .load = "ckpt"}), "");
  for (const InitConfig& init : std::vector<InitConfig>{
           {.nemotron = "n", .vision = "v"}, {.nemotron = "n", .finetune = "f"}, {.language = "l", .finetune = "f"}})
    EXPECT_THAT(problems_of({.init = init}), HasSubstr("checkpoint.init: init has several sources"));
}

TEST(Init, ContradictsWhatMakesEveryStartTheFirst) {
  const InitConfig init = {.finetune = "f"};
  EXPECT_THAT(problems_of({.init = init, .load_nemotron = "n"}), HasSubstr("load_nemotron gives every start these"));
  EXPECT_THAT(problems_of({.init = init, .load_vision_from = "n"}), HasSubstr("checkpoint.load_vision_from: "));
  EXPECT_THAT(problems_of({.init = init, .load = "ckpt", .finetune = true}), HasSubstr("checkpoint.finetune: "));
  EXPECT_THAT(problems_of({.init = init, .load = "ckpt", .must_exist = true}), HasSubstr("checkpoint.must_exist: "));
}

// Only the folder to save to, or one of its iterations, can have what this run has saved.
TEST(Init, ResumesFromTheSaveFolderOnly) {
  const auto problem_with = [](const std::string& save, const std::string& load) {
    const std::vector<Problem> problems = init_problems({.save = save, .init = {.finetune = "f"}, .load = load});
    return problems.empty() ? "" : problems[0].what;
  };
  EXPECT_EQ(problem_with("ckpt", "./ckpt/"), "");
  EXPECT_EQ(problem_with("ckpt", "ckpt/iter_0000010"), "");
  EXPECT_EQ(problem_with("", ""), "");
  EXPECT_THAT(problem_with("ckpt", "other"), HasSubstr("load is 'other' and save is 'ckpt'"));
  EXPECT_THAT(problem_with("", "other"), HasSubstr("load is 'other' and save is ''"));
  EXPECT_TRUE(init_problems({.save = "ckpt", .load = "other"}).empty());
}

}  // namespace
}  // namespace braid
