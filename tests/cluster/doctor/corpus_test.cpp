// Logs after failures of other frameworks, see corpus/README.md.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

#include "cluster/doctor/lines/log_source.h"
#include "cluster/doctor/verdict/report.h"
#include "support/programs.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kSeen = fs::path(BRAID_SOURCE_DIR) / "tests/cluster/doctor/corpus/seen";

template <class T>
bool is_one_of(const T& value, const Json& row, const char* key, const char* others) {
  const auto also = row.value(others, std::vector<T>());
  return value == row.at(key).get<T>() || std::find(also.begin(), also.end(), value) != also.end();
}

// A log that is understood at last loses its mark, so that it stays understood.
TEST(Corpus, AllButTheMarkedLogsAreUnderstood) {
  const Json rows = Json::parse(testing::read_file((kSeen / "expected.json").string()));
  for (const auto& [name, row] : rows.items()) {
    std::vector<std::string> skipped;
    const Diagnosis diagnosis = examine_logs(find_logs({(kSeen / (name + ".log")).string()}), {}, skipped);
    const bool understood = is_one_of<std::string>(text_of(diagnosis.cause).slug, row, "cause", "also") &&
                            is_one_of<int>(diagnosis.first_rank.value_or(-1), row, "rank", "rank_also");
    EXPECT_FALSE(diagnosis.evidence.empty()) << name;
    EXPECT_EQ(understood, !row.value("missed", false)) << name << ", " << row.at("why") << "\n" << to_text(diagnosis);
  }
}

TEST(Corpus, EveryLogHasARow) {
  const Json rows = Json::parse(testing::read_file((kSeen / "expected.json").string()));
  for (const auto& entry : fs::directory_iterator(kSeen))
    EXPECT_TRUE(entry.path().extension() == ".json" || rows.contains(entry.path().stem().string())) << entry.path();
}

}  // namespace
}  // namespace braid
