#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <sys/stat.h>
#include "base/strings.h"
#include "log/iteration_log.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using testing::read_file;
using testing::TemporaryFolder;

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines = split(read_file(path), '\n');
  EXPECT_EQ(lines.back(), "") << "the file does not end with a newline";
  lines.pop_back();
  return lines;
}

TEST(MetricsFile, ALineHasEveryKeyInOrder) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  MetricsFile file(path);
  file.add({.iteration = 3,
            .consumed_samples = 96,
            .learning_rate = 1e-5,
            .lm_loss = 0.1,
            .loss_scale = 1,
            .grad_norm = 2.5,
            .num_zeros = 17,
            .seq_load_balancing_loss = 1.25},
           {.iteration_ms = 12.5, .tokens_per_s = 65536, .time = 1794937137.25, .started = 1794937000.5});
  EXPECT_THAT(lines_of(path),
              ElementsAre(R"({"iteration":3,"consumed_samples":96,"lm_loss":0.1,"grad_norm":2.5,"learning_rate":1e-05,)"
                          R"("loss_scale":1.0,"num_zeros":17,"seq_load_balancing_loss":1.25,"iteration_ms":12.5,)"
                          R"("tokens_per_s":65536.0,"skipped":false,"time":1794937137.25,"started":1794937000.5})"));
}

TEST(MetricsFile, NumbersComeBackExact) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  MetricsFile(path).add({.learning_rate = 4.9406564584124654e-324, .lm_loss = 1.0 / 3}, {});
  const auto line = nlohmann::json::parse(lines_of(path).at(0));
  EXPECT_EQ(line["lm_loss"].get<double>(), 1.0 / 3);
  EXPECT_EQ(line["learning_rate"].get<double>(), 4.9406564584124654e-324);
}

TEST(MetricsFile, WhatIsAbsentOrNotFiniteIsNull) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  MetricsFile(path).add({.iteration = 1,
                         .lm_loss = std::numeric_limits<double>::quiet_NaN(),
                         .loss_scale = std::numeric_limits<double>::infinity(),
                         .grad_norm = std::numeric_limits<double>::infinity(),
                         .skipped = true},
                        {});
  const auto line = nlohmann::json::parse(lines_of(path).at(0));
  for (const char* key :
       {"lm_loss", "grad_norm", "learning_rate", "loss_scale", "num_zeros", "seq_load_balancing_loss"})
    EXPECT_TRUE(line.at(key).is_null()) << key;
  EXPECT_EQ(line["skipped"], true);
}

TEST(MetricsFile, LinesAreThereBeforeTheFileIsClosed) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  MetricsFile file(path);
  for (int iteration = 1; iteration <= 3; ++iteration) {
    file.add({.iteration = iteration}, {});
    EXPECT_EQ(lines_of(path).size(), static_cast<std::size_t>(iteration));
  }
}

TEST(MetricsFile, AResumedRunContinues) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  MetricsFile(path).add({.iteration = 1}, {});
  MetricsFile(path).add({.iteration = 2}, {});
  const std::vector<std::string> lines = lines_of(path);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(nlohmann::json::parse(lines[1])["iteration"], 2);
}

TEST(MetricsFile, ALineThatACrashCutOffIsEndedFirst) {
  TemporaryFolder folder;
  const std::string path = folder.write("metrics.jsonl", "{\"iteration\":1}\n{\"iterat");
  MetricsFile(path).add({.iteration = 2}, {});
  const std::vector<std::string> lines = lines_of(path);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1], "{\"iterat");
  EXPECT_EQ(nlohmann::json::parse(lines[2])["iteration"], 2);
}

TEST(MetricsFile, APipeIsRefused) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(testing::error_of<std::runtime_error>([&] { MetricsFile file(path); }),
              ::testing::HasSubstr("/pipe' is not a regular file: "));
}

}  // namespace
}  // namespace braid
