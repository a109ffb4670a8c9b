#include "data/indexed/gpt_data.h"
#include <gtest/gtest.h>
#include "data/indexed/index_lines.h"
#include "support/programs.h"

namespace braid {
namespace {

using Ids = std::vector<int>;

class GptDataTest : public ::testing::Test {
 protected:
  const testing::TemporaryFolder folder_;
  const std::string a_ = folder_.path() + "/a", b_ = folder_.path() + "/b";

  GptDataTest() {
    write(a_, 10, 7);
    write(b_, 4, 9);
  }

  // Token 100 * document + its place, so that each token says where it is from.
  static void write(const std::string& prefix, int documents, int length) {
    IndexedWriter writer(prefix, 1 << 20);
    for (int document = 0; document < documents; ++document) {
      Ids ids(static_cast<std::size_t>(length));
      std::iota(ids.begin(), ids.end(), 100 * document);
      writer.add_document(ids);
    }
    writer.finish();
  }

  static GptDataOptions options(const std::string& path, std::int64_t samples = 12) {
    return {.path = path, .shares = "8,2", .split = "train", .samples = samples, .sequence_length = 5, .seed = 1};
  }

  static std::string refusal(const GptDataOptions& options) {
    try {
      GptData(options).read(0);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "";
  }
};

TEST_F(GptDataTest, SamplesOverlapByOneToken) {
  const GptData data(options(a_, 11));
  ASSERT_EQ(data.samples(), 11);  // 8 documents of 7 tokens
  std::map<std::int64_t, Ids> by_row;
  for (std::int64_t sample = 0; sample < 11; ++sample) by_row[data.order_of(0).shuffle[sample]] = data.read(sample);
  Ids stream;
  for (const std::int32_t document : data.order_of(0).sequences)
    for (int i = 0; i < 7; ++i) stream.push_back(100 * document + i);
  for (const auto& [row, ids] : by_row) EXPECT_EQ(ids, Ids(stream.begin() + 5 * row, stream.begin() + 5 * row + 6));
  EXPECT_EQ(data.read(3 + 11), data.read(3));
}

TEST_F(GptDataTest, NamesOfTexts) {
  for (const std::string& path : {a_, a_ + " " + b_, "0.5 " + a_ + " 0.5 " + b_, std::string("1 /nowhere 2 /else")})
    EXPECT_TRUE(names_gpt_data(path)) << path;
  for (const std::string& path :
       {a_ + ".bin", a_ + ".idx", folder_.path(), a_ + "x", std::string("a folder"), std::string()})
    EXPECT_FALSE(names_gpt_data(path)) << path;
  std::filesystem::create_directories(a_ + "/cache");  // where Megatron keeps the order
  EXPECT_TRUE(names_gpt_data(a_));
  EXPECT_EQ(data_path_from("/work", "texts/a"), "/work/texts/a");
  EXPECT_EQ(data_path_from("/work", "my texts/a"), "/work/my texts/a");
  EXPECT_EQ(data_path_from("/work", "0.5 a 1 /b"), "0.5 /work/a 1 /b");
  EXPECT_EQ(data_path_from(folder_.path(), "a b"), a_ + " " + b_);
}

TEST_F(GptDataTest, APositionContinuesThere) {
  const GptData data(options("3 " + a_ + " 1 " + b_, 40));
  EXPECT_EQ(data.sample_at({data.position(17)}), 17);
  const auto difference = [&](const GptDataOptions& other) {
    try {
      GptData(other).sample_at({data.position(17)});
    } catch (const ConfigError& e) {
      return e.problems().front().what;
    }
    return std::string();
  };
  const std::string path = "3 " + a_ + " 1 " + b_;
  EXPECT_EQ(difference(options(path, 40)), "");
  EXPECT_EQ(difference(options("6 " + a_ + " 2 " + b_, 40)), "");  // the same shares
  GptDataOptions changed = options(path, 40);
  changed.seed = 2;
  EXPECT_NE(difference(changed).find("train.seed has changed"), std::string::npos);
  changed = options(path, 40);
  changed.sequence_length = 6;
  EXPECT_NE(difference(changed).find("data.sequence_length has changed"), std::string::npos);
  EXPECT_NE(difference(options("4 " + a_ + " 1 " + b_, 40)).find("share 0.8"), std::string::npos);
  EXPECT_NE(difference(options(path, 400)).find("the length of the run"), std::string::npos);
  changed = options(path, 40);
  changed.shares = "1";
  EXPECT_NE(difference(changed).find("the text '" + a_), std::string::npos);
  EXPECT_THROW(data.sample_at({"17"}), DataError);
  EXPECT_THROW(data.sample_at({data.position(17), data.position(17)}), ConfigError);
  std::string damaged = data.position(17);
  damaged[damaged.size() / 2] ^= 1;
  EXPECT_THROW(data.sample_at({damaged}), DataError);
}

TEST_F(GptDataTest, RefusesWhatItCannotRead) {
  EXPECT_NE(refusal(options("1 " + a_ + " 1 " + a_ + "x")).find("there are no files"), std::string::npos);
  EXPECT_NE(refusal(options(a_ + " " + b_, 1000)).find("without weights, each is read once"), std::string::npos);
  EXPECT_NE(refusal(options("1e-300 " + a_ + " 1e300 " + b_)).find("is too small"), std::string::npos);
  GptDataOptions wrong = options(a_);
  wrong.split = "training";
  EXPECT_NE(refusal(wrong).find("no split 'training'"), std::string::npos);
  wrong = options(a_);
  wrong.split = "test";
  EXPECT_NE(refusal(wrong).find("the test split of '8,2' has none of 10 sequences"), std::string::npos);
  wrong = options(a_);
  wrong.refused = {3};
  GptData data(wrong);
  EXPECT_THROW(for (std::int64_t i = 0; i < data.samples(); ++i) data.read(i), DataError);
  EXPECT_EQ(refusal(options(a_)), "");
  std::filesystem::resize_file(a_ + ".bin", 9);
  EXPECT_NE(refusal(options(a_)).find("its sequences end at byte"), std::string::npos);
}

TEST_F(GptDataTest, LinesWithoutTextWriteNothing) {
  const std::string lines = folder_.write("lines.jsonl", "{\"text\": \"a\"}\n{\"words\": \"b\"}\n");
  const IndexLinesRequest request = {.lines = lines, .prefix = a_, .tokenizer = folder_.path()};
  EXPECT_THROW(index_lines(request), ConfigError);  // the files exist
}

}  // namespace
}  // namespace braid
