// A rewritten checkpoint has the same content, in any files and chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "ckpt/checkpoint_tools.h"
#include "ckpt/small_checkpoint.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Rewrite : public ::testing::Test {
 protected:
  Rewrite()
      : from(testing::save(folder.path() + "/from", 12,
                           {{"model.a", at::arange(1000, at::kFloat).view({10, 100})},
                            {"model.b", at::arange(31, at::kBFloat16)},
                            {"model.c", at::scalar_tensor(1.5)},
                            {"model.empty", at::empty({0, 2})},
                            {"optimizer.a", at::ones({40, 25}, at::kDouble)}},
                           3, {{"rng/shard_0_1", pickle("state")}, {"plain", pickle_list({pickle(1)})}})) {}

  std::string to() const { return folder.path() + "/to"; }

  const testing::TemporaryFolder folder;
  DistCheckpoint from;
};

TEST_F(Rewrite, HoldsTheSameInOtherFiles) {
  for (const int files : {1, 2, 5}) {
    const std::string root = fmt::format("{}_{}", to(), files);
    rewrite_checkpoint(from, root, 12, {.files = files});
    EXPECT_EQ(latest_iteration(root), 12);
    DistCheckpoint copy(resolve_iteration(root));
    EXPECT_TRUE(compare_checkpoints(from, copy).equal());
    EXPECT_EQ(copy.common_bytes(), from.common_bytes());
    EXPECT_EQ(copy.object_bytes("plain"), from.object_bytes("plain"));
    EXPECT_THAT(verify_checkpoint(copy.folder()).problems, IsEmpty());
    EXPECT_EQ(files_of(copy.folder()).writers.size(), static_cast<std::size_t>(files));
  }
}

TEST_F(Rewrite, ChunksAreNoLargerThanAsked) {
  rewrite_checkpoint(from, to(), 12, {.chunk_bytes = 1200});
  DistCheckpoint copy(resolve_iteration(to()));
  EXPECT_EQ(copy.metadata().tensors.at("model.a").chunks.size(), 4u);  // three rows of 400 bytes each
  EXPECT_TRUE(compare_checkpoints(from, copy).equal());
}

TEST_F(Rewrite, KeysAreRenamedOrLeftOut) {
  const auto rename = [](const std::string& key) {
    return key.starts_with("model.") ? std::optional("net." + key.substr(6)) : std::nullopt;
  };
  const Rewritten written = rewrite_checkpoint(from, to(), 12, {.rename = rename});
  EXPECT_EQ(written.tensors, 4u);
  EXPECT_EQ(written.objects, 0u);
  const DistCheckpoint copy(resolve_iteration(to()));
  EXPECT_TRUE(copy.metadata().tensors.count("net.a"));
  const auto same = [](const std::string&) { return std::optional<std::string>("same"); };
  EXPECT_THAT(error_of<DataError>([&] { rewrite_checkpoint(from, to() + "2", 12, {.rename = same}); }),
              HasSubstr("would both become 'same'"));
}

TEST_F(Rewrite, NothingIsOverwritten) {
  rewrite_checkpoint(from, to(), 12);
  EXPECT_THAT(error_of([&] { rewrite_checkpoint(from, to(), 12); }), HasSubstr("already exists"));
  rewrite_checkpoint(from, to(), 13);
  EXPECT_EQ(iterations_in(to()), (std::vector<std::int64_t>{12, 13}));
  folder.write("a file", "");
  EXPECT_THAT(error_of([&] { rewrite_checkpoint(from, folder.path(), 12); }), HasSubstr("not empty"));
}

TEST_F(Rewrite, IsTriedAgainWhereItWasInterrupted) {
  begin_iteration(to(), 12);
  rewrite_checkpoint(from, to(), 12);
  EXPECT_EQ(latest_iteration(to()), 12);
  EXPECT_FALSE(std::filesystem::exists(partial_folder(to(), 12)));
}

}  // namespace
}  // namespace braid
