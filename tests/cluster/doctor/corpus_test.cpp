// Logs after failures of other frameworks, see corpus/README.md.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "cluster/doctor/report.h"
#include "cluster/lines/log_source.h"
#include "support/programs.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kCorpus = fs::path(BRAID_SOURCE_DIR) / "tests/cluster/doctor/corpus";

Json rows_of(const char* part) { return Json::parse(testing::read_file((kCorpus / part / "expected.json").string())); }

Diagnosis diagnosis_of(const char* part, const std::string& name) {
  std::vector<std::string> skipped;
  return examine_logs(find_logs({(kCorpus / part / (name + ".log")).string()}), {}, skipped);
}

template <class T>
bool is_one_of(const T& value, const Json& row, const char* key, const char* others) {
  const auto also = row.value(others, std::vector<T>());
  return value == row.at(key).get<T>() || std::find(also.begin(), also.end(), value) != also.end();
}

bool is_right(const Diagnosis& diagnosis, const Json& row) {
  return is_one_of<std::string>(text_of(diagnosis.cause).slug, row, "cause", "also") &&
         is_one_of<int>(diagnosis.first_rank.value_or(-1), row, "rank", "rank_also");
}

TEST(Corpus, EverySeenLogIsUnderstood) {
  const Json rows = rows_of("seen");
  for (const auto& [name, row] : rows.items()) {
    const Diagnosis diagnosis = diagnosis_of("seen", name);
    EXPECT_FALSE(diagnosis.evidence.empty()) << name;
    EXPECT_TRUE(is_right(diagnosis, row)) << name << ", " << row.at("why") << "\n" << to_text(diagnosis);
  }
}

// No rule was written for these logs, so their share estimates how often the doctor is right on the next log. The test
// does not say which logs are wrong: whoever looks at one writes rules for it, and then it belongs to seen/.
TEST(Corpus, AtLeast96PercentOfTheUnseenLogsAreUnderstood) {
  const Json rows = rows_of("unseen");
  std::size_t right = 0;
  for (const auto& [name, row] : rows.items()) right += is_right(diagnosis_of("unseen", name), row);
  fmt::print("{} of {} unseen logs are understood\n", right, rows.size());
  EXPECT_GE(100 * right, 96 * rows.size()) << right << " of " << rows.size();
}

TEST(Corpus, EveryLogHasARow) {
  for (const char* part : {"seen", "unseen"}) {
    const Json rows = rows_of(part);
    for (const auto& entry : fs::directory_iterator(kCorpus / part))
      EXPECT_TRUE(entry.path().extension() == ".json" || rows.contains(entry.path().stem().string())) << entry.path();
  }
}

}  // namespace
}  // namespace braid
