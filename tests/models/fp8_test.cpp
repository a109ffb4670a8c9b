// The hybrid language model in fp8: which of its weights are multiplied so, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "models/configs.h"
#include "models/providers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

HybridLmConfig tiny_model(Fp8Mode fp8) {
  HybridLmConfig config = std::get<HybridLmConfig>(provider("tiny-vlm").language);
  config.pattern = "ME*-";
  config.fp8 = fp8;
  return config;
}

TEST(Fp8Model, MultipliesByLayersWeightsOnly) {
  for (const ParamSpec& spec : declare_parameters(tiny_model(Fp8Mode::Off))) EXPECT_FALSE(spec.fp8) << spec.name;
  std::size_t count = 0;
  for (const ParamSpec& spec : declare_parameters(tiny_model(Fp8Mode::Rowwise))) {
    const bool has_map = spec.name.ends_with("_proj.weight") || spec.name.find(".linear_") != spec.name.npos;
    EXPECT_EQ(spec.fp8, has_map && spec.shape.size() > 1) << spec.name;
    count += spec.fp8;
  }
  EXPECT_EQ(count, 2u + 4u + 2u + 2u);
}

TEST(Fp8Model, NeedsWidthsInMultiplesOf16OnEveryRank) {
  HybridLmConfig config = tiny_model(Fp8Mode::Rowwise);
  EXPECT_TRUE(validate(config, {}, "model").empty());
  const std::vector<Problem> split = validate(config, {.tp = 4}, "model");  // 4 x 8 + 2 x 2 x 8 = 64, but the Mamba's
  ASSERT_FALSE(split.empty());
  EXPECT_THAT(split[0].what, HasSubstr("must be multiples of 16"));
  config.fp8 = Fp8Mode::Off;
  EXPECT_TRUE(validate(config, {.tp = 4}, "model").empty());
}

}  // namespace
}  // namespace braid
