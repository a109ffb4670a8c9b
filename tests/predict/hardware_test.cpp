#include "predict/hardware.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

const std::string kSmall = R"(
source: measured
device: cuda
memory_gb: 10
inside_node:
  latency_us: 5
  rates: |
    1e6 10
    1e8 30
operators:
  product:
    latency_us: 2
    rates: |
      64 64 64 100
  stream:
    rates: |
      1e6 1000
)";

std::string problems_of(const std::string& yaml) {
  try {
    parse_hardware(yaml, "some.yaml");
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(Hardware, StoredProfilesAreValid) {
  for (const std::string& name : hardware_names()) {
    const HardwareProfile profile = load_hardware(name);
    EXPECT_EQ(profile.name, name);
    EXPECT_GT(speed_of(profile, Operator::Scan).rates.size(), 0u);
    EXPECT_GT(rate_of(profile.inside_node, 1e6), 0);
    EXPECT_GT(rate_of(profile.between_nodes, 1e6), 0);
  }
  EXPECT_THAT(hardware_names(), Contains("h100"));
  EXPECT_THAT(hardware_names(), Contains("cpu-2"));
}

TEST(Hardware, DatasheetProfilesSaySo) {
  EXPECT_THAT(described(load_hardware("gb200")), HasSubstr("from a datasheet"));
  EXPECT_EQ(described(load_hardware("h200")), "h200 (operators measured, links from a datasheet, not measured)");
}

// As braid plan calibrate writes it on a GPU.
TEST(Hardware, RefusesMoreRanksThanItHasLinksFor) {
  HardwareProfile profile = load_hardware("h200");
  profile.between_nodes.rates.clear();
  check_links(profile, 8);
  EXPECT_THAT(testing::error_of<ConfigError>([&] { check_links(profile, 9); }), HasSubstr("between_nodes.rates"));
  profile.inside_node.rates.clear();
  check_links(profile, 1);
  EXPECT_THAT(testing::error_of<ConfigError>([&] { check_links(profile, 2); }), HasSubstr("inside_node.rates"));
}

TEST(Hardware, ParsingWhatIsWrittenGivesTheSame) {
  const HardwareProfile profile = load_hardware("h100");
  const std::string yaml = to_yaml(profile);
  EXPECT_EQ(to_yaml(parse_hardware(yaml, "h100.yaml")), yaml);
}

// By the logarithm of the size between points, and as at the nearest point beyond them.
TEST(Hardware, RateOfALink) {
  const Speed link = parse_hardware(kSmall, "some.yaml").inside_node;
  EXPECT_DOUBLE_EQ(rate_of(link, 1e3), 10e9);
  EXPECT_DOUBLE_EQ(rate_of(link, 1e7), 20e9);
  EXPECT_DOUBLE_EQ(rate_of(link, 1e12), 30e9);
}

TEST(Hardware, ACollectiveMayTakeMoreThanItsMessages) {
  EXPECT_EQ(parse_hardware(kSmall, "some.yaml").collective_us, 0);
  const std::string yaml = replaced(kSmall, "memory_gb: 10", "memory_gb: 10\ncollective_us: 250");
  const HardwareProfile profile = parse_hardware(yaml, "some.yaml");
  EXPECT_EQ(profile.collective_us, 250);
  EXPECT_EQ(parse_hardware(to_yaml(profile), "some.yaml").collective_us, 250);
}

TEST(Hardware, AnOperatorThatWasNotMeasuredIsAsFastAsASimilarOne) {
  const HardwareProfile profile = parse_hardware(kSmall, "some.yaml");
  EXPECT_EQ(speed_of(profile, Operator::Norm).rates[0].giga_per_s, 1000);
  EXPECT_EQ(speed_of(profile, Operator::ScanBackward).rates[0].giga_per_s, 100);
}

TEST(Hardware, RefusesAnUnknownName) {
  try {
    load_hardware("h1oo");
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("no hardware profile is called 'h1oo'"));
    EXPECT_THAT(e.what(), HasSubstr("h100"));
  }
}

// A wrong unit or exponent.
TEST(Hardware, RefusesWhatNoMachineHas) {
  EXPECT_THAT(problems_of(replaced(kSmall, "latency_us: 5", "latency_us: 1e30")),
              HasSubstr("inside_node.latency_us must be at most 1e+08"));
  EXPECT_THAT(problems_of(replaced(kSmall, "latency_us: 2", "latency_us: 1e30")),
              HasSubstr("operators.product.latency_us must be at most"));
  EXPECT_THAT(problems_of(replaced(kSmall, "memory_gb: 10", "memory_gb: 80e9")),
              HasSubstr("memory_gb must be at most"));
  EXPECT_THAT(problems_of(replaced(kSmall, "memory_gb: 10", "memory_gb: 10\nranks_per_node: 1000000")),
              HasSubstr("ranks_per_node must be at most 131072"));
  EXPECT_THAT(problems_of(replaced(kSmall, "1e8 30", "1e8 30e30")), HasSubstr("must be from 1e-09 to 1e+15"));
  EXPECT_THAT(problems_of(replaced(kSmall, "1e8 30", "1e8 inf")), HasSubstr("inside_node.rates"));
  EXPECT_THAT(problems_of(replaced(kSmall, "1e8 30", "1e8 nan")), HasSubstr("inside_node.rates"));
  for (const char* value : {"nan", "inf", ".nan", ".inf", "1e999"})
    EXPECT_THAT(problems_of(replaced(kSmall, "latency_us: 5", fmt::format("latency_us: {}", value))),
                HasSubstr("inside_node.latency_us"));
}

TEST(Hardware, NamesWhatIsWrong) {
  EXPECT_EQ(problems_of(kSmall), "");
  EXPECT_THAT(problems_of(replaced(kSmall, "memory_gb: 10", "memory_gb: -1")), HasSubstr("must be positive, got -1"));
  EXPECT_THAT(problems_of(replaced(kSmall, "memory_gb: 10", "memory_gb: 10\ncollective_us: -1")),
              HasSubstr("collective_us must not be negative, got -1"));
  EXPECT_THAT(problems_of(replaced(kSmall, "memory_gb: 10", "memory_gb: 10\ncollective_cpu: 1.5")),
              HasSubstr("collective_cpu must be at most 1, got 1.5"));
  EXPECT_THAT(problems_of(replaced(kSmall, "memory_gb: 10", "memory_gb: 10\ncrowding: 0.9")),
              HasSubstr("crowding must be at least 1, got 0.9"));
  EXPECT_THAT(problems_of(replaced(kSmall, "memory_gb: 10", "")), HasSubstr("memory_gb is missing"));
  EXPECT_THAT(problems_of(replaced(kSmall, "device: cuda", "device: cpu")), HasSubstr("cores is missing"));
  EXPECT_THAT(problems_of(replaced(kSmall, "64 64 64 100", "64 64 100")),
              HasSubstr("should have 4 positive numbers, not '64 64 100'"));
  EXPECT_THAT(problems_of(replaced(kSmall, "1e8 30", "1e8 fast")), HasSubstr("inside_node.rates"));
  EXPECT_THAT(problems_of(replaced(kSmall, "  stream:", "  streams:")), HasSubstr("no operator is called 'streams'"));
  EXPECT_THAT(problems_of(replaced(kSmall, "device: cuda", "device: tpu")), HasSubstr("cuda, cpu"));
  EXPECT_THAT(problems_of(replaced(kSmall, "device: cuda", "device: cpu\ncores: 2")),
              HasSubstr("the speed of 'product_wide' is missing"));
}

}  // namespace
}  // namespace braid
