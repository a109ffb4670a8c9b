#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "predict/step_draws.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DataStats, AreReadAsTheyWereWritten) {
  const DataStats stats = {.sequence_length = 64,
                           .encoders = {"images"},
                           .sequences = {{.pieces = {{30, 10, 19, 29}, {20, 0, 0, 0}}, .media = {{{4, 4}, {2, 8}}}},
                                         {.pieces = {{64, 63, 0, 63}}, .media = {{}}}},
                           .reading = ReadingTimes{0.25, 0.125}};
  const testing::TemporaryFolder folder;
  const DataStats again = read_data_stats(folder.write("stats.json", to_json(stats).dump()));
  EXPECT_EQ(again.sequence_length, 64);
  EXPECT_EQ(again.encoders, stats.encoders);
  EXPECT_EQ(again.sequences, stats.sequences);
  EXPECT_EQ(again.reading->sequence_s, 0.25);
  EXPECT_EQ(again.reading->patch_s, 0.125);
}

TEST(DataStats, SayWhatIsWrongWithAFile) {
  const testing::TemporaryFolder folder;
  const auto told = [&](const std::string& text) {
    return testing::error_of<ConfigError>([&] { read_data_stats(folder.write("stats.json", text)); });
  };
  const auto of_sequence = [&](const std::string& sequence) {
    return told(R"({"sequence_length": 8, "encoders": ["images"], "sequences": [{"pieces": [[8, 1, 0, 1]]}, )" +
                sequence + "]}");
  };
  EXPECT_THAT(testing::error_of<ConfigError>([&] { read_data_stats(folder.path() + "/none.json"); }),
              AllOf(HasSubstr("none.json"), HasSubstr("braid data inspect")));
  EXPECT_THAT(testing::error_of<ConfigError>([&] { read_data_stats(folder.path()); }),
              HasSubstr("cannot read the data statistics"));
  EXPECT_THAT(told("{"), HasSubstr("is not JSON: line 1"));
  EXPECT_THAT(told(R"({"lengths": []})"), HasSubstr("has no \"sequences\""));
  EXPECT_THAT(told(R"({"sequence_length": 0, "sequences": []})"), HasSubstr("sequence_length is 0"));
  EXPECT_THAT(told(R"({"sequence_length": 8, "encoders": [], "sequences": []})"), HasSubstr("sequences is empty"));
  EXPECT_THAT(told(R"({"sequence_length": 8, "encoders": [1], "sequences": []})"), HasSubstr("must be names"));
  EXPECT_THAT(told(R"({"sequence_length": 8, "encoders": [], "reading": {"sequence_s": -1}, "sequences": []})"),
              HasSubstr("reading.sequence_s should be a number of seconds"));
  EXPECT_THAT(of_sequence("{}"), HasSubstr("sequences[1].pieces is missing"));
  EXPECT_THAT(of_sequence(R"({"pieces": [[8, 1]]})"), HasSubstr("sequences[1].pieces[0] should have four numbers"));
  EXPECT_THAT(of_sequence(R"({"pieces": [[8, 1.5, 0, 2]]})"), HasSubstr("sequences[1].pieces[0] is 1.5"));
  EXPECT_THAT(of_sequence(R"({"pieces": [[8, 3, 0, 2]]})"), HasSubstr("has 3 labels at 0 to 2 of 8 tokens"));
  EXPECT_THAT(of_sequence(R"({"pieces": [[6, 0, 0, 0], [6, 0, 0, 0]]})"), HasSubstr("have 12 tokens"));
  EXPECT_THAT(of_sequence(R"({"pieces": [[8, 0, 0, 0]], "media": []})"), HasSubstr("media has 0 lists"));
  EXPECT_THAT(of_sequence(R"({"pieces": [[8, 0, 0, 0]], "media": [[4]]})"), HasSubstr("a list of numbers for each"));
  EXPECT_THAT(of_sequence(R"({"pieces": [[8, 0, 0, 0]], "media": [[[0, 4]]]})"), HasSubstr("media is 0"));
}

}  // namespace
}  // namespace braid
