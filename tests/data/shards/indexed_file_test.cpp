// Megatron's files of indexed text: those that Braid writes, changed by hand, and small ones of each type.
// tests/oracles/indexed_test.py reads and writes them with megatron-core.
#include "data/shards/indexed_file.h"
#include <gtest/gtest.h>
#include "data/shards/lane.h"
#include "support/programs.h"

namespace braid {
namespace {

using Ids = std::vector<int>;
using testing::read_file;

constexpr std::size_t kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26, kLengthsAt = 34;
const std::vector<Ids> kDocuments = {{1, 2, 3}, {}, {70, 80}, {5}};
constexpr std::size_t kOffsetsAt = kLengthsAt + 4 * 4, kBordersAt = kOffsetsAt + 4 * 8;

std::string bytes_of(const auto& value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }

class IndexedFileTest : public ::testing::Test {
 protected:
  const testing::TemporaryFolder folder_;
  const std::string prefix_ = folder_.path() + "/text", bin_ = prefix_ + ".bin", idx_ = prefix_ + ".idx";

  IndexedFileTest() {
    IndexedWriter writer(prefix_, 1000);
    for (const Ids& ids : kDocuments) writer.add_document(ids);
    writer.finish();
  }

  static void put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

  void patch(std::size_t at, const std::string& value) const {
    std::string bytes = read_file(idx_);
    put(idx_, bytes.replace(at, value.size(), value));
  }

  std::string refusal() const {
    try {
      const IndexedFile file(prefix_);
      for (std::int64_t i = 0; i < file.documents(); ++i) file.document(i);
      file.lengths(0, file.sequences());
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "";
  }
};

TEST_F(IndexedFileTest, ReadsWhatWasWritten) {
  const IndexedFile file(prefix_);
  EXPECT_EQ(file.type(), TokenType::Uint16);
  ASSERT_EQ(file.documents(), std::ssize(kDocuments));
  for (std::size_t i = 0; i < kDocuments.size(); ++i)
    EXPECT_EQ(file.document(static_cast<std::int64_t>(i)), kDocuments[i]);
  EXPECT_EQ(file.lengths(1, 4), (std::vector<std::int32_t>{0, 2, 1}));
  Ids ids = {9};
  file.append(0, 1, std::nullopt, ids);
  file.append(2, 0, 1, ids);
  EXPECT_EQ(ids, (Ids{9, 2, 3, 70}));
  IndexedWriter writer(prefix_, 65500);
  writer.add_document(Ids{65499});
  writer.finish();
  EXPECT_EQ(IndexedFile(prefix_).type(), TokenType::Int32);
  EXPECT_EQ(IndexedFile(prefix_).document(0), Ids{65499});
}

TEST_F(IndexedFileTest, AWriterThatDoesNotFinishChangesNothing) {
  IndexedWriter(prefix_, 10).add_document(Ids{1});
  EXPECT_EQ(IndexedFile(prefix_).documents(), std::ssize(kDocuments));
}

template <class Stored>
std::string tokens_as(std::initializer_list<double> values) {
  std::string bytes;
  for (const double value : values) bytes += bytes_of(static_cast<Stored>(value));
  return bytes;
}

TEST_F(IndexedFileTest, ReadsEveryTypeOfTokens) {
  const std::vector<std::pair<TokenType, std::string>> kTypes = {
      {TokenType::Uint8, tokens_as<std::uint8_t>({7, 200})},
      {TokenType::Int8, tokens_as<std::int8_t>({7, 100})},
      {TokenType::Int16, tokens_as<std::int16_t>({7, 30000})},
      {TokenType::Uint16, tokens_as<std::uint16_t>({7, 60000})},
      {TokenType::Int32, tokens_as<std::int32_t>({7, 1 << 30})},
      {TokenType::Int64, tokens_as<std::int64_t>({7, 1 << 30})},
      {TokenType::Float32, tokens_as<float>({7, 4096})},
      {TokenType::Float64, tokens_as<double>({7, 1 << 30})}};
  const std::vector<int> second = {200, 100, 30000, 60000, 1 << 30, 1 << 30, 4096, 1 << 30};
  IndexedWriter writer(prefix_, 10);
  writer.add_document(Ids{1, 2});
  writer.finish();
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    patch(kTypeAt, bytes_of(kTypes[i].first));
    put(bin_, kTypes[i].second);
    EXPECT_EQ(IndexedFile(prefix_).document(0), (Ids{7, second[i]})) << i;
  }
  for (const double value : {-1.0, 0.5, 1e10, std::nan("")}) {
    put(bin_, tokens_as<double>({7, value}));
    EXPECT_NE(refusal().find("token 1 of sequence 0 in"), std::string::npos) << value;
  }
}

TEST_F(IndexedFileTest, DocumentsMayHaveSeveralSequences) {
  patch(kBordersAt + 8, bytes_of(std::int64_t{0}));
  patch(kBordersAt + 16, bytes_of(std::int64_t{3}));
  const IndexedFile file(prefix_);
  EXPECT_EQ(file.document(0), Ids{});
  EXPECT_EQ(file.document(1), (Ids{1, 2, 3, 70, 80}));
}

TEST_F(IndexedFileTest, RefusesModes) {
  put(idx_, read_file(idx_) + std::string(kDocuments.size(), '\0'));
  EXPECT_THROW(IndexedFile{prefix_}, ConfigError);
  EXPECT_NE(refusal().find("several modalities"), std::string::npos);
}

// What is written at a place of the index, and what the refusal says.
TEST_F(IndexedFileTest, RefusesDamage) {
  const std::string good = read_file(idx_);
  const struct {
    std::size_t at;
    std::string value, why;
  } kDamage[] = {
      {0, "X", "does not begin with MMIDIDX"},
      {9, "\2", "its version is 2"},
      {kTypeAt, std::string(1, '\0'), "unknown code 0"},
      {kTypeAt, "\x09", "unknown code 9"},
      {kTypeAt, "\4", "its sequences end at byte 14"},
      {kSequencesAt, bytes_of(std::uint64_t{8}), "too few for 8 sequences"},
      {kSequencesAt, bytes_of(UINT64_MAX / 12 + 1), "too few for"},
      {kSequencesAt, bytes_of(std::uint64_t{3}), "need"},
      {kDocumentsAt, bytes_of(UINT64_MAX / 8), "borders"},
      {kDocumentsAt, bytes_of(std::uint64_t{4}), "need"},
      {kLengthsAt, bytes_of(std::int32_t{-3}), "sequence 0 has -3 tokens"},
      {kLengthsAt, bytes_of(std::int32_t{1 << 20}), "which has 12 bytes"},
      {kLengthsAt, bytes_of(std::int32_t{1 << 30}), "more than 268435456 tokens"},
      {kLengthsAt + 12, bytes_of(std::int32_t{2}), "its sequences end at byte 14"},
      {kOffsetsAt, bytes_of(std::int64_t{-2}), "at byte -2"},
      {kOffsetsAt + 8, bytes_of(INT64_MAX), "said to have 0 tokens"},
      {kOffsetsAt + 24, bytes_of(INT64_MAX - 1), "its sequences end"},
      {kBordersAt, bytes_of(std::int64_t{1}), "its documents are sequences 1 to 4"},
      {kBordersAt + 8, bytes_of(std::int64_t{9}), "document 0 is sequences 0 to 9"},
      {kBordersAt + 8, bytes_of(std::int64_t{-9}), "document 0 is sequences 0 to -9"},
      {kBordersAt + 32, bytes_of(INT64_MAX), "its documents are"},
  };
  for (const auto& [at, value, why] : kDamage) {
    put(idx_, good);
    patch(at, value);
    EXPECT_NE(refusal().find(why), std::string::npos) << why << ": " << refusal();
  }
  for (std::size_t size = 0; size < good.size(); ++size) {
    put(idx_, good.substr(0, size));
    EXPECT_THROW(IndexedFile{prefix_}, ReadError) << size;
  }
  put(idx_, good);
  put(bin_, "short");
  EXPECT_THROW(IndexedFile{prefix_}, ReadError);
  EXPECT_THROW(IndexedFile{prefix_ + "x"}, ReadError);
}

TEST_F(IndexedFileTest, AnyByteMayBeWrong) {
  const std::string good = read_file(idx_);
  int read = 0;
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      put(idx_, bytes);
      read += refusal().empty();  // any other exception fails the test
    }
  EXPECT_GT(read, 0);  // an offset of an empty document, or one within the file
}

TEST_F(IndexedFileTest, NoticesThatFilesBecomeShorterWhileTheyAreRead) {
  const IndexedFile file(prefix_);
  std::filesystem::resize_file(bin_, 2);
  EXPECT_THROW(file.document(0), ReadError);
  std::filesystem::resize_file(idx_, 40);
  EXPECT_THROW(file.document(0), ReadError);
  EXPECT_THROW(file.lengths(0, 2), ReadError);
  EXPECT_THROW(file.contents_hash(), ReadError);
}

// --- as a data set of a blend

TEST_F(IndexedFileTest, DocumentsAreSamplesInABlend) {
  const std::string blend = folder_.write("blend.yaml", R"(
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {weight: 9, path: text.bin, subflavors: {cook: bin_idx}}
      - {weight: 1, path: text.bin, subset: {range: [2, 4]}}
)");
  const auto opened = open_blend(blend, "train");
  ASSERT_EQ(opened->leaves.size(), 2u);
  EXPECT_EQ(opened->leaves[0].data.samples(), std::ssize(kDocuments));
  EXPECT_TRUE(opened->leaves[0].spec.has_ids);
  SampleReader reader(opened);
  const Sample sample = reader.read({.leaf = 1, .index = 2});
  EXPECT_EQ(sample.key, "2");
  ASSERT_EQ(sample.parts.size(), 1u);
  EXPECT_EQ(sample.parts[0].bytes, bytes_of(std::array<int, 2>{70, 80}));
  EXPECT_EQ(unreadable_shards(*opened).size(), 0u);
  EXPECT_EQ(index_path(bin_), idx_);
  std::filesystem::resize_file(bin_, 2);
  EXPECT_EQ(unreadable_shards(*opened).size(), 1u);  // the leaves have the same file
}

TEST_F(IndexedFileTest, APrefixIsNoDataSetOfDocuments) {
  EXPECT_EQ(kind_of_path(bin_), PathKind::IndexedText);
  try {
    kind_of_path(prefix_);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find(bin_), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace braid
