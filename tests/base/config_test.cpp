// Reading YAML into config structs: what is accepted, and which message the user gets for each mistake.
#include "base/config.h"
#include <gmock/gmock.h>

namespace braid {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

struct LampConfig {
  std::string name;
  int watts = 5;
};

struct RoomConfig {
  int area = 10;
  std::optional<int> floor;
  double height = 2.5;
  std::optional<double> rent;
  bool warm = false;
  std::string owner = "nobody";
  std::string use = "office";
  std::vector<std::string> doors;
  std::vector<LampConfig> lamps;
};

struct HouseConfig {
  RoomConfig room{};
  int number = 1;
  std::int64_t bricks = 1;
  std::optional<std::int64_t> nails{};
};

void describe(Fields& f, LampConfig& c) { f.field("watts", c.watts, "power"); }

void describe(Fields& f, RoomConfig& c) {
  f.field("area", c.area, "square metres");
  f.field("floor", c.floor, "storey; default: unknown");
  f.field("height", c.height, "metres");
  f.field("rent", c.rent, "a month; default: none");
  f.field("warm", c.warm, "heated");
  f.field("owner", c.owner, "who pays");
  f.choice("use", c.use, {"office", "kitchen"}, "what it is for");
  f.list("doors", c.doors, {"north", "south", "west"}, "where they are");
  f.named("lamps", c.lamps);
}

void describe(Fields& f, HouseConfig& c) {
  f.section("room", c.room);
  f.field("number", c.number, "in the street");
  f.field("bricks", c.bricks, "in its walls");
  f.field("nails", c.nails, "in its roof");
}

struct Reading {
  HouseConfig house;
  std::vector<Problem> problems;
};

Reading read(const std::string& yaml, const std::vector<ConfigOverride>& overrides = {}) {
  YamlReader reader = YamlReader::from_text(yaml, "house.yaml", overrides);
  Reading reading;
  describe(reader, reading.house);
  reading.problems = reader.finish();
  return reading;
}

// The one problem that reading finds.
Problem problem_in(const std::string& yaml, const std::vector<ConfigOverride>& overrides = {}) {
  const Reading reading = read(yaml, overrides);
  EXPECT_THAT(reading.problems, SizeIs(1));
  return reading.problems.empty() ? Problem{} : reading.problems[0];
}

// The one problem of the ConfigError that `act` throws.
template <class Act>
Problem refusal(Act act) {
  try {
    act();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.problems(), SizeIs(1));
    return e.problems().at(0);
  }
  ADD_FAILURE() << "no ConfigError";
  return {};
}

std::string print(HouseConfig house) {
  YamlWriter writer;
  describe(writer, house);
  return writer.text();
}

TEST(YamlReaderTest, ReadsEveryKindOfField) {
  const auto [house, problems] = read(R"(
number: 12
room:
  area: 20
  floor: -1
  height: 3.25e0
  rent: 99.5
  warm: true
  owner: "Ada # not a comment"
  use: kitchen
  lamps:
    desk: {watts: 7}
    ceiling: {}
)");
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(house.number, 12);
  EXPECT_EQ(house.room.area, 20);
  EXPECT_EQ(house.room.floor, -1);
  EXPECT_EQ(house.room.height, 3.25);
  EXPECT_EQ(house.room.rent, 99.5);
  EXPECT_TRUE(house.room.warm);
  EXPECT_EQ(house.room.owner, "Ada # not a comment");
  EXPECT_EQ(house.room.use, "kitchen");
  ASSERT_THAT(house.room.lamps, SizeIs(2));
  EXPECT_EQ(house.room.lamps[0].name, "desk");
  EXPECT_EQ(house.room.lamps[0].watts, 7);
  EXPECT_EQ(house.room.lamps[1].name, "ceiling");
  EXPECT_EQ(house.room.lamps[1].watts, 5);
}

TEST(YamlReaderTest, AListIsAYamlListOrHasCommas) {
  EXPECT_THAT(read("room: {doors: [west, north]}").house.room.doors, ElementsAre("west", "north"));
  EXPECT_THAT(read("", {{"room.doors", "south,west"}}).house.room.doors, ElementsAre("south", "west"));
  EXPECT_THAT(read("room: {doors: [west]}", {{"room.doors", "[]"}}).house.room.doors, IsEmpty());
  for (const char* wrong : {"up", "\"west,up\"", "[west, up]", "{}", "[[west]]", "~"})
    EXPECT_THAT(problem_in(fmt::format("room: {{doors: {}}}", wrong)).what,
                HasSubstr("doors should be a list of some of north, south, west, not "))
        << wrong;
}

TEST(YamlReaderTest, AListNamesNothingTwice) {
  for (const char* twice : {"[west, north, west]", "\"west,west\""}) {
    const Problem problem = problem_in(fmt::format("room: {{doors: {}}}", twice));
    EXPECT_EQ(problem.what, "doors names 'west' twice");
    EXPECT_EQ(problem.fix, "keep one of them");
  }
}

TEST(YamlReaderTest, AMisspelledChoiceGetsTheNearestOne) {
  EXPECT_EQ(problem_in("room: {use: kichen}").fix, "did you mean 'kitchen'?");
  EXPECT_EQ(problem_in("room: {doors: [north, sotuh]}").fix, "did you mean 'south'?");
  EXPECT_EQ(problem_in("", {{"room.doors", "wets"}}).fix, "did you mean 'west'?");
}

TEST(YamlReaderTest, OtherwiseTheChoicesAreListed) {
  for (const char* wrong : {"true", "cinema", "[kitchen]", "~"})
    EXPECT_EQ(problem_in(fmt::format("room: {{use: {}}}", wrong)).fix, "use office or kitchen") << wrong;
  EXPECT_EQ(problem_in("room: {doors: [up]}").fix, "use north, south or west");
  EXPECT_EQ(problem_in("room: {doors: {}}").fix, "write a list, for example [north]");
}

TEST(YamlReaderTest, AbsentKeysKeepTheirDefaults) {
  for (const char* yaml : {"", "# only a comment", "room:", "room: {}", "room: {lamps: }"}) {
    const auto [house, problems] = read(yaml);
    EXPECT_THAT(problems, IsEmpty()) << yaml;
    EXPECT_EQ(house.room.area, 10) << yaml;
    EXPECT_EQ(house.room.floor, std::nullopt) << yaml;
    EXPECT_EQ(house.room.rent, std::nullopt) << yaml;
  }
}

TEST(YamlReaderTest, UnknownKeyNamesItsLineAndTheNearestKey) {
  const Problem problem = problem_in("number: 3\nroom:\n  ara: 4\n");
  EXPECT_EQ(problem.what, "unknown key 'ara'");
  EXPECT_EQ(problem.where, "house.yaml:3, room.ara");
  EXPECT_EQ(problem.fix, "did you mean 'area'?");
}

TEST(YamlReaderTest, UnknownKeyWithoutNeighboursListsTheKnownOnes) {
  EXPECT_EQ(problem_in("zebra: 1").fix, "known keys here: room, number, bricks, nails");
}

TEST(YamlReaderTest, UnknownKeyInsideANamedEntry) {
  const Problem problem = problem_in("room:\n  lamps:\n    desk:\n      wats: 3\n");
  EXPECT_EQ(problem.where, "house.yaml:4, room.lamps.desk.wats");
  EXPECT_EQ(problem.fix, "did you mean 'watts'?");
}

TEST(YamlReaderTest, WrongTypesNameWhatWasExpectedAndTheLine) {
  struct Case {
    const char *line, *what;
  };
  for (const auto& [line, what] : {
           Case{"area: big", "area should be an integer, not 'big'"},
           Case{"area: 2.5", "area should be an integer, not '2.5'"},
           Case{"area: [1, 2]", "area should be an integer, not a list"},
           Case{"area: {a: 1}", "area should be an integer, not a mapping"},
           Case{"area:", "area should be an integer, not nothing"},
           Case{"floor: top", "floor should be an integer, not 'top'"},
           Case{"height: tall", "height should be a number, not 'tall'"},
           Case{"rent: much", "rent should be a number, not 'much'"},
           Case{"warm: yes", "warm should be true or false, not 'yes'"},
           Case{"owner: [Ada]", "owner should be a string, not a list"},
           Case{"use: cinema", "use should be one of office, kitchen, not 'cinema'"},
           Case{"lamps: 3", "lamps should be a mapping of keys, not '3'"},
       }) {
    const Problem problem = problem_in(std::string("room:\n  ") + line);
    EXPECT_EQ(problem.what, what);
    EXPECT_THAT(problem.where, HasSubstr("house.yaml:2, room.")) << line;
  }
}

TEST(YamlReaderTest, AKeyGivenTwiceIsRefused) {
  const Problem problem = problem_in("number: 1\nroom: {}\nnumber: 2\n");
  EXPECT_EQ(problem.what, "key 'number' is given twice");
  EXPECT_EQ(problem.where, "house.yaml:3, number");
}

TEST(YamlReaderTest, AnEntryGivenTwiceIsRefused) {
  EXPECT_EQ(problem_in("room:\n  lamps:\n    desk: {}\n    desk: {}\n").where, "house.yaml:4, room.lamps.desk");
}

TEST(YamlReaderTest, ReportsEveryMistakeAtOnce) {
  EXPECT_THAT(read("number: x\nroom: {area: y, zzz: 1, warm: maybe}\nnumber: 3\n").problems, SizeIs(5));
}

TEST(YamlReaderTest, RefusesWhatIsNotYaml) {
  const Problem problem = refusal([] { read("room: {area: 3\nnumber: [\n"); });
  EXPECT_THAT(problem.what, HasSubstr("not valid YAML"));
  EXPECT_THAT(problem.where, HasSubstr("house.yaml:"));
  EXPECT_THAT(problem.fix, HasSubstr("bracket"));
  const Problem deep = refusal([] { read("room: " + std::string(5000, '[')); });
  EXPECT_THAT(deep.what, HasSubstr("levels deep"));
  EXPECT_THAT(deep.fix, HasSubstr("close the brackets"));
}

TEST(YamlReaderTest, IntegersHave64BitsWhereTheConfigHas) {
  const auto [house, problems] = read("bricks: 5000000000\nnails: -9223372036854775808");
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(house.bricks, 5'000'000'000);
  EXPECT_EQ(house.nails, std::numeric_limits<std::int64_t>::min());
  const auto again = read(print(house)).house;
  EXPECT_EQ(again.bricks, house.bricks);
  EXPECT_EQ(again.nails, house.nails);
}

// The user knows the default, but not the limits of the type.
TEST(YamlReaderTest, NumbersThatDoNotFitAreTooLargeOrTooSmall) {
  for (const char* value : {"3000000000", "3e9", "99999999999999999999", "1e999"}) {
    const Problem problem = problem_in(fmt::format("number: {}", value));
    EXPECT_EQ(problem.what, fmt::format("number is too large: '{}'", value));
    EXPECT_EQ(problem.fix, fmt::format("give a smaller number; the default is {}", HouseConfig{}.number));
  }
  EXPECT_EQ(problem_in("number: -2147483649").what, "number is too small: '-2147483649'");
  EXPECT_THAT(problem_in("number: -2147483649").fix, HasSubstr("give a larger number"));
  EXPECT_EQ(problem_in("number: 1e-999").what, "number should be an integer, not '1e-999'");
  EXPECT_EQ(problem_in("room: {height: 1e999}").what, "height is too large: '1e999'");
  EXPECT_EQ(problem_in("room: {height: 1e-999}").what, "height is too close to 0: '1e-999'");
  EXPECT_EQ(problem_in("room: {height: 1e-999}").fix, "write 0 if you mean 0");
}

TEST(YamlReaderTest, AWholeNumberInAnotherNotationGetsItsDigits) {
  const Problem problem = problem_in("number: 3e6");
  EXPECT_EQ(problem.what, "number should be an integer, not '3e6'");
  EXPECT_EQ(problem.fix, "write 3000000");
  EXPECT_EQ(problem_in("number: 2.5").fix, "");
}

TEST(YamlReaderTest, RefusesYamlThatIsNoMapping) {
  EXPECT_THAT(refusal([] { read("- a\n- b\n"); }).what, HasSubstr("not a list"));
  EXPECT_THAT(refusal([] { read("just words"); }).what, HasSubstr("not 'just words'"));
}

TEST(YamlReaderTest, SaysWhereAKeyIsOrWouldBe) {
  YamlReader reader = YamlReader::from_text("number: 1\nroom:\n  area: 4\n", "house.yaml", {{"number", "2"}});
  EXPECT_EQ(reader.where("room.area"), "house.yaml:3, room.area");
  EXPECT_EQ(reader.where("room.area.deeper"), "house.yaml:3, room.area.deeper");
  EXPECT_EQ(reader.where("number"), "command line, --number");
  EXPECT_EQ(reader.where("garden"), "house.yaml, garden");
}

TEST(YamlReaderTest, MissingFileIsNamed) {
  EXPECT_THAT(refusal([] { YamlReader::from_file("no/such/house.yaml"); }).what, HasSubstr("no/such/house.yaml"));
}

TEST(YamlReaderTest, AFolderIsNoFile) {
  EXPECT_THAT(refusal([] { YamlReader::from_file(testing::TempDir()); }).what, HasSubstr("Is a directory"));
  EXPECT_THAT(refusal([] { YamlReader::from_file("/dev/zero"); }).what, HasSubstr("larger than 4 MiB"));
}

TEST(YamlReaderTest, AnEmptyFileIsAnEmptyConfig) {
  const std::string path = testing::TempDir() + "/braid_config_test_empty.yaml";
  std::ofstream(path).close();
  HouseConfig house;
  YamlReader reader = YamlReader::from_file(path);
  describe(reader, house);
  EXPECT_THAT(reader.finish(), IsEmpty());
  std::filesystem::remove(path);
}

TEST(OverrideTest, WinsOverTheFile) {
  const auto [house, problems] = read("number: 1\nroom: {area: 5, warm: true}", {{"room.area", "6"}, {"number", "7"}});
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(house.room.area, 6);
  EXPECT_TRUE(house.room.warm);
  EXPECT_EQ(house.number, 7);
}

TEST(OverrideTest, TheLastOfTwoWins) { EXPECT_EQ(read("", {{"number", "2"}, {"number", "3"}}).house.number, 3); }

TEST(OverrideTest, MakesSectionsAndEntriesThatTheFileLacks) {
  const auto [house, problems] = read("", {{"room.area", "6"}, {"room.lamps.desk.watts", "8"}});
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(house.room.area, 6);
  ASSERT_THAT(house.room.lamps, SizeIs(1));
  EXPECT_EQ(house.room.lamps[0].watts, 8);
}

TEST(OverrideTest, BadValueIsBlamedOnTheCommandLine) {
  const Problem problem = problem_in("room: {area: 5}", {{"room.area", "big"}});
  EXPECT_EQ(problem.what, "area should be an integer, not 'big'");
  EXPECT_EQ(problem.where, "command line, --room.area");
}

TEST(OverrideTest, UnknownPathGetsTheNearestKey) {
  const Problem problem = problem_in("number: 1", {{"room.aera", "3"}});
  EXPECT_EQ(problem.where, "command line, --room.aera");
  EXPECT_EQ(problem.fix, "did you mean 'area'?");
}

TEST(OverrideTest, UnknownSectionIsBlamedOnTheCommandLine) {
  const Problem problem = problem_in("number: 1", {{"rom.area", "3"}});
  EXPECT_EQ(problem.what, "unknown key 'rom'");
  EXPECT_THAT(problem.where, HasSubstr("command line"));
  EXPECT_EQ(problem.fix, "did you mean 'room'?");
}

TEST(OverrideTest, MistakesInsideAWholeSectionAreBlamedOnTheCommandLine) {
  const Problem problem = problem_in("number: 1\n\nroom: {area: 5}", {{"room", "{area: 6, warm: maybe}"}});
  EXPECT_EQ(problem.where, "command line, --room (room.warm)");
}

TEST(OverrideTest, TheFlagThatWasTypedIsNamed) {
  const Problem problem = problem_in("room: {area: 5}", {{"room.area", "big", "--floor-space"}});
  EXPECT_EQ(problem.where, "command line, --floor-space (room.area)");
  YamlReader reader = YamlReader::from_text("", "house.yaml", {{"number", "2", "--no"}, {"number", "3", "--number"}});
  EXPECT_EQ(reader.where("number"), "command line, --number");  // of two flags, the one that takes effect
  EXPECT_EQ(refusal([] { read("", {{"number", "[1,", "--no"}}); }).where, "command line, --no (number)");
}

TEST(OverrideTest, APathThroughAValueIsRefused) {
  const Problem problem = refusal([] { read("room: {area: 5}", {{"room.area.exact", "5"}}); });
  EXPECT_EQ(problem.what, "'room.area' cannot have a key 'exact' below it");
  EXPECT_EQ(problem.where, "command line, --room.area.exact");
}

TEST(OverrideTest, AValueThatIsNotYamlIsRefused) {
  const Problem problem = refusal([] { read("", {{"number", "[1,"}}); });
  EXPECT_THAT(problem.what, HasSubstr("not valid YAML"));
  EXPECT_EQ(problem.where, "command line, --number");
}

TEST(YamlWriterTest, PrintsOneKeyALineWithItsHelp) {
  HouseConfig house;
  house.room.lamps = {{"desk", 7}};
  const std::string text = print(house);
  EXPECT_THAT(text, HasSubstr("number: 1 "));
  EXPECT_THAT(text, HasSubstr("# in the street\n"));
  EXPECT_THAT(text, HasSubstr("  use: office "));
  EXPECT_THAT(text, HasSubstr("# what it is for (office | kitchen)\n"));
  EXPECT_THAT(text, HasSubstr("    desk:\n      watts: 7 "));
  EXPECT_THAT(text, HasSubstr("\n  # floor:  "));  // no value: the key is a comment
  EXPECT_THAT(text, HasSubstr("\n  # rent:  "));
}

TEST(YamlWriterTest, WhatItPrintsReadsBackTheSame) {
  HouseConfig house;
  house.number = -3;
  house.room = {.area = 2147483647,
                .floor = 0,
                .height = 0.1 + 0.2,
                .rent = 0.7 + 0.1,
                .warm = true,
                .owner = "Zoë: \"quoted\" # \\ 'n\n\ttabs",
                .use = "kitchen",
                .lamps = {{"a", 1}, {"b-2", 0}}};
  const auto [again, problems] = read(print(house));
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(again.room.height, house.room.height);
  EXPECT_EQ(again.room.owner, house.room.owner);
  EXPECT_EQ(again.room.floor, 0);
  EXPECT_EQ(again.room.rent, house.room.rent);
  ASSERT_THAT(again.room.lamps, SizeIs(2));
  EXPECT_EQ(again.room.lamps[1].name, "b-2");
  EXPECT_EQ(print(again), print(house));
}

TEST(YamlWriterTest, StringsThatLookLikeOtherTypesStayStrings) {
  for (const char* owner : {"", "true", "12", "~", "null", "- x", "{a: b}", "*alias"}) {
    HouseConfig house;
    house.room.owner = owner;
    const auto [again, problems] = read(print(house));
    EXPECT_THAT(problems, IsEmpty()) << owner;
    EXPECT_EQ(again.room.owner, owner);
  }
}

TEST(YamlWriterTest, DoublesKeepEveryBit) {
  for (double height : {0.0, 1.0, 1e-8, 6.02214076e23, -2.5e-310, 1.0 / 3}) {
    HouseConfig house;
    house.room.height = height;
    EXPECT_EQ(read(print(house)).house.room.height, height);
  }
}

TEST(YamlReaderTest, ASecondDocumentIsNotIgnored) {
  EXPECT_THROW(YamlReader::from_text("a: 1\n---\nb: 2\n", "two.yaml"), ConfigError);
}

}  // namespace
}  // namespace braid
