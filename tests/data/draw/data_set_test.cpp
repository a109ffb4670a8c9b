#include "data/draw/data_set.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "data/samples/stored_sample.h"
#include "data/shards/prepare.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

// Without the key index, whose files have a time and a random name in them.
std::map<std::string, std::string> files_of(const DrawRequest& request) {
  const testing::TemporaryFolder folder;
  DrawRequest own = request;
  own.folder = folder.path();
  draw_data_set(own);
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    if (entry.is_regular_file() && !entry.path().filename().string().starts_with("index."))
      files[std::filesystem::relative(entry.path(), folder.path())] = testing::read_file(entry.path());
  return files;
}

TEST(DrawnData, DependsOnlyOnTheSeed) {
  const DrawRequest request = {.train = 30, .val = 10, .per_shard = 20, .seed = 7};
  const auto files = files_of(request);
  EXPECT_TRUE(files.contains("train_0001.tar"));
  EXPECT_TRUE(files.contains("val_0002.tar"));
  EXPECT_FALSE(files.contains(kUnfinishedMark));
  EXPECT_TRUE(files == files_of(request));
  DrawRequest other = request;
  other.seed = 8;
  EXPECT_FALSE(files_of(other).at("train_0000.tar") == files.at("train_0000.tar"));
}

TEST(DrawnData, HasAllTasksInWordsOfItsTokenizer) {
  const Font font = usual_font();
  std::vector<std::string> tasks;
  for (const std::string& task : drawing_tasks())
    if (font || (task != "digit" && task != "word")) tasks.push_back(task);
  const auto tokenizer = testing::word_tokenizer();
  std::set<std::string> seen, sizes;
  for (std::uint64_t number = 0; number < 600; ++number) {
    const DrawnSample sample = draw_sample(1, number, tasks, font);
    seen.insert(sample.task);
    EXPECT_EQ(sample.image.has_value(), sample.task != "text");
    EXPECT_EQ(sample.question.empty(), sample.task == "caption");
    if (sample.image) sizes.insert(fmt::format("{} x {}", sample.image->size().width, sample.image->size().height));
    const auto words = std::count(sample.answer.begin(), sample.answer.end(), ' ') + 1;
    EXPECT_EQ(std::ssize(tokenizer->encode(sample.answer)), words) << sample.answer;
    EXPECT_LE(tokenizer->encode(sample.question).size(), 8u) << sample.question;
  }
  EXPECT_EQ(seen, std::set<std::string>(tasks.begin(), tasks.end()));
  EXPECT_GE(sizes.size(), 5u);
}

TEST(DrawnData, RefusesUnknownTasksAndUsedFolders) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT(testing::error_of([&] { draw_data_set({.folder = folder.path(), .tasks = {"fly"}}); }),
              HasSubstr("there is no task 'fly'"));
  EXPECT_THAT(testing::error_of([&] { draw_data_set({.folder = folder.path(), .val = 0}); }),
              HasSubstr("--val 0 must be from 1"));
  folder.write(kUnfinishedMark, "");
  EXPECT_THAT(testing::error_of([&] { draw_data_set({.folder = folder.path()}); }),
              HasSubstr("has a drawing that was interrupted"));
  std::filesystem::remove(folder.path() + "/" + kUnfinishedMark);
  folder.write("mine.txt", "x");
  EXPECT_THAT(testing::error_of([&] { draw_data_set({.folder = folder.path()}); }), HasSubstr("is not empty"));
  EXPECT_THAT(testing::error_of([&] { draw_data_set({.folder = folder.write("file", "")}); }), HasSubstr("is a file"));
  const Drawn drawn = draw_data_set(
      {.folder = folder.path() + "/new", .train = 1, .val = 1, .tasks = {"colour", "text", "colour", "text"}});
  EXPECT_THAT(drawn.tasks, ::testing::ElementsAre("colour", "text"));
}

}  // namespace
}  // namespace braid
