// Differences with closed forms, between checkpoints with different chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ckpt/checkpoint_tools.h"
#include "ckpt/small_checkpoint.h"
#include "formats/torch_archive.h"
#include "plan/param_spec.h"
#include "support/programs.h"

namespace braid {
namespace {

using testing::save;
using testing::TemporaryFolder;
using testing::Tensors;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Compared {
  TemporaryFolder folder;
  DistCheckpoint first, second;
  Comparison comparison;
  Compared(const Tensors& a, const Tensors& b, const testing::Objects& of_a = {}, const testing::Objects& of_b = {})
      : first(save(folder.path() + "/a", 1, a, 1, of_a)), second(save(folder.path() + "/b", 2, b, 3, of_b)),
        comparison(compare_checkpoints(first, second)) {}
  const TensorDifference& of(const std::string& key) const {
    for (const TensorDifference& tensor : comparison.tensors)
      if (tensor.key == key) return tensor;
    throw std::out_of_range(key);
  }
};

TEST(Compare, TheSameInOtherChunksIsEqual) {
  const Tensors tensors = {{"matrix", at::arange(70, at::kBFloat16).view({7, 10})},
                           {"scalar", at::scalar_tensor(2, at::kLong)},
                           {"nothing", at::empty({0, 4})},
                           {"not numbers", at::full({9}, kNaN)}};
  const Compared compared(tensors, tensors);
  EXPECT_TRUE(compared.comparison.equal());
  EXPECT_EQ(compared.comparison.tensors.size(), 4u);
}

TEST(Compare, NumbersOfADifference) {
  at::Tensor a = at::full({6, 5}, 2.0), b = a.clone();
  b[1][2] += 3;
  b[4][0] -= 4;
  const Compared compared({{"w", a}}, {{"w", b}});
  const TensorDifference& w = compared.of("w");
  EXPECT_FALSE(compared.comparison.equal());
  EXPECT_EQ(w.different, 2);
  EXPECT_EQ(w.largest, 4);
  EXPECT_EQ(w.l2, 5);
  EXPECT_DOUBLE_EQ(w.relative, 5 / std::sqrt(30 * 4.0));
}

TEST(Compare, TheLargestComesFirstAndWhatIsNotANumberBeforeIt) {
  const at::Tensor zeros = at::zeros({4});
  at::Tensor broken = zeros.clone();
  broken[3] = kNaN;
  const Compared compared({{"a", zeros}, {"b", zeros}, {"c", zeros}, {"d", zeros}},
                          {{"a", zeros + 1}, {"b", zeros}, {"c", broken}, {"d", zeros + 2}});
  std::string order;
  for (const TensorDifference& tensor : compared.comparison.tensors) order += tensor.key;
  EXPECT_EQ(order, "cdab");
  EXPECT_TRUE(std::isnan(compared.of("c").largest));
  EXPECT_EQ(compared.of("c").different, 1);
}

TEST(Compare, MinusZeroIsAnotherBitPattern) {
  const Compared compared({{"w", at::zeros({3})}}, {{"w", -at::zeros({3})}});
  EXPECT_EQ(compared.of("w").different, 3);
  EXPECT_EQ(compared.of("w").largest, 0);
  EXPECT_FALSE(compared.comparison.equal());
}

TEST(Compare, OtherDtypesAreComparedByValueAndOtherShapesNot) {
  const Compared compared(
      {{"dtype", at::ones({4})}, {"shape", at::ones({4})}, {"only a", at::ones({1})}},
      {{"dtype", at::ones({4}, at::kBFloat16)}, {"shape", at::ones({2, 2})}, {"only b", at::ones({1})}});
  EXPECT_TRUE(compared.of("dtype").comparable());
  EXPECT_EQ(compared.of("dtype").different, 0);
  EXPECT_FALSE(compared.of("dtype").equal());
  EXPECT_FALSE(compared.of("shape").comparable());
  EXPECT_EQ(compared.of("only a").second, nullptr);
  EXPECT_EQ(compared.of("only b").first, nullptr);
}

TEST(Compare, Objects) {
  const Compared compared({}, {}, {{"same", pickle(1)}, {"other", pickle(2)}, {"a", pickle(3)}},
                          {{"same", pickle(1)}, {"other", pickle("2")}, {"b", pickle(3)}});
  ASSERT_EQ(compared.comparison.objects.size(), 3u);
  EXPECT_EQ(compared.comparison.objects[0].key, "a");
  EXPECT_FALSE(compared.comparison.objects[0].in_second);
  EXPECT_EQ(compared.comparison.objects[2].key, "other");
}

std::string save_archive(const std::string& root, const PickleValue& value,
                         std::optional<std::span<const std::byte>> storage) {
  std::string archive;
  write_archive(value, storage, [&](std::span<const std::byte> bytes) {
    archive.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  begin_iteration(root, 1);
  DistWriter writer(partial_folder(root, 1), 0);
  writer.add_archive("object", archive);
  writer.finish();
  hand_in(partial_folder(root, 1), 0, writer);
  publish(root, 1, 1, write_archive(pickle_dict({})));
  return iteration_folder(root, 1);
}

TEST(Compare, TensorsInObjectsCount) {
  const TemporaryFolder folder;
  const auto compared = [&](const PickleValue& value, std::string_view first, std::optional<std::string_view> second) {
    const auto saved = [&](const char* name, std::optional<std::string_view> storage) {
      const std::string root = folder.path() + name;
      return save_archive(root, value, storage ? std::optional(std::as_bytes(std::span(*storage))) : std::nullopt);
    };
    DistCheckpoint a(saved("/a", first)), b(saved("/b", second));
    return compare_checkpoints(a, b).equal();
  };
  const PickleValue tensor =
      pickle_tensor({.dtype = StoredDtype::U8, .shape = {4}, .strides = {1}, .storage = "0", .storage_elements = 4});
  EXPECT_TRUE(compared(tensor, "abcd", "abcd"));
  EXPECT_FALSE(compared(tensor, "abcd", "abce"));
  EXPECT_FALSE(compared(pickle_dict({{"step", pickle(1)}, {"state", pickle_list({tensor})}}), "abcd", "abce"));
  EXPECT_TRUE(compared(pickle(1), "some other program's", std::nullopt));
}

TEST(Statistics, LeaveOutWhatIsNotFinite) {
  at::Tensor values = at::tensor({3.0, -4.0, 0.0, 1.0});
  values[2] = kNaN;
  values[3] = std::numeric_limits<double>::infinity();
  const TemporaryFolder folder;
  DistCheckpoint checkpoint(save(folder.path(), 1, {{"w", values}}));
  const TensorStatistics numbers = statistics_of(checkpoint, "w", 2);
  EXPECT_EQ(numbers.least, -4);
  EXPECT_EQ(numbers.largest, 3);
  EXPECT_EQ(numbers.mean, -0.5);
  EXPECT_EQ(numbers.l2, 5);
  EXPECT_EQ(numbers.nans, 1);
  EXPECT_EQ(numbers.infinities, 1);
  EXPECT_EQ(numbers.first, (std::vector<double>{3, -4}));
}

TEST(Slabs, CoverEveryElementOnceInOrder) {
  const std::vector<std::vector<std::int64_t>> shapes = {{}, {1}, {0, 3}, {10}, {7, 3}, {2, 5, 4}, {1, 1, 9}};
  for (const auto& shape : shapes)
    for (const std::int64_t most : {1, 3, 8, 1000}) {
      const at::Tensor numbered = at::arange(num_elements(shape), at::kLong).view(shape);
      std::vector<at::Tensor> parts;
      for (const Slab& slab : slabs_of(shape, most)) {
        EXPECT_LE(num_elements(slab.size), most);
        at::Tensor part = numbered;
        for (std::size_t dim = 0; dim < shape.size(); ++dim)
          part = part.narrow(static_cast<std::int64_t>(dim), slab.begin[dim], slab.size[dim]);
        parts.push_back(part.flatten());
      }
      EXPECT_TRUE(at::equal(at::cat(parts), numbered.flatten()));
    }
}

}  // namespace
}  // namespace braid
