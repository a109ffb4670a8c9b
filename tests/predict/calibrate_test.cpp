#include "predict/calibrate.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(Calibrate, GivesAProfileOfTheCpu) {
  HardwareProfile profile = calibrate({.device = "cpu", .seconds = 0}, [](const std::string&) {});
  profile.memory_gb = profile.cores = 1;
  profile.inside_node = profile.between_nodes = calibrate_gloo();
  const HardwareProfile again = parse_hardware(to_yaml(profile), "measured.yaml");
  EXPECT_EQ(again.source, "measured");
  EXPECT_EQ(again.device, "cpu");
  EXPECT_GT(rate_of(again.inside_node, 1e6), 1e6);
  for (const Operator op : {Operator::ProductWide, Operator::Experts, Operator::Attention, Operator::ScanBackward,
                            Operator::Router, Operator::Norm, Operator::CrossEntropy, Operator::Update})
    EXPECT_GE(again.operators[static_cast<std::size_t>(op)].rates.size(), 3u)
        << operator_names()[static_cast<std::size_t>(op)];
}

}  // namespace
}  // namespace braid
