// Megatron's indexed text: PREFIX.bin has the tokens of all sequences, end to end; PREFIX.idx says how long each
// sequence is, where it begins, and which consecutive sequences form a document. Plain text has one sequence per
// document.
//
// The index is mapped into memory, since it has 20 bytes per sequence and the ranks of a host can share it. Tokens are
// read by position, like the samples of shards: a system error is then an exception, and the read can be repeated.
#pragma once

#include "data/shards/input_file.h"

namespace braid {

inline constexpr std::string_view kIndexedTokens = ".bin", kIndexedIndex = ".idx";

// Of a .bin file: its path without the ending.
inline std::string indexed_prefix(const std::string& bin_path) {
  return bin_path.substr(0, bin_path.size() - kIndexedTokens.size());
}

// A file that is mapped for reading. Access to it is safe only while the file keeps its size.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // ReadError when it cannot be opened or is empty
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return file_.path(); }
  std::uint64_t size() const { return file_.size(); }
  void check_size() const { file_.check_size(); }  // ReadError if it has become shorter
  template <class Value>
  Value load(std::uint64_t offset) const {  // values need not be aligned
    Value value;
    std::memcpy(&value, bytes_ + offset, sizeof(Value));
    return value;
  }
  const std::byte* at(std::uint64_t offset) const { return bytes_ + offset; }

 private:
  const InputFile file_;
  const std::byte* bytes_ = nullptr;
};

// The codes of Megatron's DType.
enum class TokenType : std::uint8_t { Uint8 = 1, Int8, Int16, Int32, Int64, Float64, Float32, Uint16 };

// May be used by several threads at once.
class IndexedFile {
 public:
  // ReadError if one of the two files cannot be read or the index does not fit its own size or the tokens. ConfigError
  // for an index of several modalities.
  explicit IndexedFile(const std::string& prefix);

  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return documents_; }
  TokenType type() const { return type_; }
  const InputFile& tokens() const { return tokens_; }

  // Tokens of sequences [first, end). DataError for a negative length.
  std::vector<std::int32_t> lengths(std::int64_t first, std::int64_t end) const;

  // Appends tokens [begin, end) of a sequence; no end: all that follow. DataError if the index does not fit the tokens,
  // or if a token is not a number from 0 to 2^31 - 1.
  void append(std::int64_t sequence, std::int64_t begin, std::optional<std::int64_t> end, std::vector<int>& ids) const;
  std::vector<int> document(std::int64_t document) const;

  // The sizes, and the first and last bytes of tokens and index: cheap to read, and different for almost any other
  // text.
  std::string contents_hash() const;

 private:
  std::int64_t length(std::int64_t sequence) const;
  std::int64_t first_sequence(std::int64_t document) const;
  [[noreturn]] void fail(const std::string& what) const;

  const MappedFile index_;
  const InputFile tokens_;
  TokenType type_{};
  std::int64_t sequences_ = 0, documents_ = 0;
};

// Writes both files, with the bytes that Megatron writes. They appear, the index last, when all documents are written.
class IndexedWriter {
 public:
  // `vocabulary`: of the tokenizer, which decides how many bytes a token has.
  IndexedWriter(const std::string& prefix, int vocabulary);
  ~IndexedWriter();

  void add_document(std::span<const int> ids);
  void finish();

 private:
  struct Files;
  const std::unique_ptr<Files> files_;
};

}  // namespace braid
