#include "data/shards/indexed_file.h"
#include <sys/mman.h>
#include "base/strings.h"
#include "data/shards/energon_random.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::uint64_t kVersion = 1, kVersionAt = 9, kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26,
                        kLengthsAt = 34;
constexpr int kWideVocabulary = 65500;                       // for which Megatron writes 4 bytes per token
constexpr std::uint64_t kLengthBytes = 4, kOffsetBytes = 8;  // per sequence; a document has one of the latter

// Bytes of one token; 0 for an unknown code.
std::uint64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::Uint8:
    case TokenType::Int8: return 1;
    case TokenType::Int16:
    case TokenType::Uint16: return 2;
    case TokenType::Int32:
    case TokenType::Float32: return 4;
    case TokenType::Int64:
    case TokenType::Float64: return 8;
  }
  return 0;
}

// The number of the first value that is no token id; nothing if all are.
template <class Stored>
std::optional<std::size_t> append_as(std::string_view bytes, std::vector<int>& ids) {
  const std::size_t count = bytes.size() / sizeof(Stored), before = ids.size();
  ids.resize(before + count);
  for (std::size_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    constexpr double kLargest = std::numeric_limits<int>::max();
    if (!(value >= 0 && static_cast<double>(value) <= kLargest)) return i;
    ids[before + i] = static_cast<int>(value);
    if (static_cast<Stored>(ids[before + i]) != value) return i;  // a fraction
  }
  return std::nullopt;
}

std::optional<std::size_t> append_tokens(TokenType type, std::string_view bytes, std::vector<int>& ids) {
  switch (type) {
    case TokenType::Uint8: return append_as<std::uint8_t>(bytes, ids);
    case TokenType::Int8: return append_as<std::int8_t>(bytes, ids);
    case TokenType::Int16: return append_as<std::int16_t>(bytes, ids);
    case TokenType::Int32: return append_as<std::int32_t>(bytes, ids);
    case TokenType::Int64: return append_as<std::int64_t>(bytes, ids);
    case TokenType::Float64: return append_as<double>(bytes, ids);
    case TokenType::Float32: return append_as<float>(bytes, ids);
    case TokenType::Uint16: return append_as<std::uint16_t>(bytes, ids);
  }
  return 0;
}

std::string ends_of(const std::string& name, std::uint64_t size, const auto& read) {
  constexpr std::uint64_t kLooked = 4096;  // bytes at each end
  const std::uint64_t part = std::min(size, kLooked);
  return fmt::format("{} {}\n", name, size) + read(0, part) + read(size - part, part);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : file_(path) {
  if (file_.size() == 0) throw ReadError(fmt::format("'{}' is empty", path));
  void* bytes = ::mmap(nullptr, file_.size(), PROT_READ, MAP_SHARED, file_.descriptor(), 0);
  if (bytes == MAP_FAILED)
    throw SystemReadError(fmt::format("cannot map '{}' into memory: {}", path, std::strerror(errno)));
  bytes_ = static_cast<const std::byte*>(bytes);
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(bytes_), file_.size()); }

IndexedFile::IndexedFile(const std::string& prefix)
    : index_(prefix + std::string(kIndexedIndex)), tokens_(prefix + std::string(kIndexedTokens)) {
  const auto refuse = [&](const std::string& why) {
    throw ReadError(fmt::format("'{}' is not an index of Megatron's text, or is damaged: {}", index_.path(), why));
  };
  if (index_.size() < kLengthsAt)
    refuse(fmt::format("it has {}", counted(static_cast<std::int64_t>(index_.size()), "byte")));
  if (std::memcmp(index_.at(0), kMagic.data(), kMagic.size()) != 0) refuse("it does not begin with MMIDIDX");
  if (const auto version = index_.load<std::uint64_t>(kVersionAt); version != kVersion)
    refuse(fmt::format("its version is {}, and only {} is known", version, kVersion));
  type_ = index_.load<TokenType>(kTypeAt);
  if (size_of(type_) == 0)
    refuse(fmt::format("the type of its tokens has the unknown code {}", fmt::underlying(type_)));
  const auto sequences = index_.load<std::uint64_t>(kSequencesAt), borders = index_.load<std::uint64_t>(kDocumentsAt);
  const std::uint64_t room = index_.size() - kLengthsAt;
  // Divided, because a product of damaged numbers may overflow.
  if (sequences > room / (kLengthBytes + kOffsetBytes) || borders > room / kOffsetBytes)
    refuse(fmt::format("it has {} bytes, too few for {} sequences and {} borders of documents", index_.size(),
                       sequences, borders));
  const std::uint64_t expected = kLengthsAt + sequences * (kLengthBytes + kOffsetBytes) + borders * kOffsetBytes;
  if (sequences > 0 && index_.size() == expected + sequences)
    throw ConfigError(
        {fmt::format("'{}' has a mode for each sequence: it is an index of several modalities", index_.path()), "",
         "write a text-only data set, for example with `braid data prepare --to-indexed`"});
  if (index_.size() != expected)
    refuse(fmt::format("it has {} bytes, but {} sequences and {} borders of documents need {}", index_.size(),
                       sequences, borders, expected));
  if (sequences == 0 || borders < 2) refuse("it has no documents");
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(borders) - 1;
  if (first_sequence(0) != 0 || first_sequence(documents_) != sequences_)
    refuse(fmt::format("its documents are sequences {} to {}, but it has {}", first_sequence(0),
                       first_sequence(documents_), sequences));
  // Unsigned, because a damaged sum may overflow. Each sequence is checked when it is read.
  const std::uint64_t last = sequences - 1;
  const auto begin = index_.load<std::uint64_t>(kLengthsAt + sequences * kLengthBytes + last * kOffsetBytes);
  const auto tokens = static_cast<std::uint64_t>(index_.load<std::int32_t>(kLengthsAt + last * kLengthBytes));
  if (const std::uint64_t end = begin + tokens * size_of(type_); end != tokens_.size())
    refuse(fmt::format("its sequences end at byte {}, but '{}' has {}", end, tokens_.path(), tokens_.size()));
}

void IndexedFile::fail(const std::string& what) const {
  throw DataError(fmt::format("'{}' is damaged: {}; write it again from its source", index_.path(), what));
}

std::int64_t IndexedFile::length(std::int64_t sequence) const {
  BRAID_CHECK(sequence >= 0 && sequence < sequences_, "sequence {} of {}", sequence, sequences_);
  const auto length = index_.load<std::int32_t>(kLengthsAt + static_cast<std::uint64_t>(sequence) * kLengthBytes);
  if (length < 0) fail(fmt::format("sequence {} has {} tokens", sequence, length));
  return length;
}

std::vector<std::int32_t> IndexedFile::lengths(std::int64_t first, std::int64_t end) const {
  BRAID_CHECK(first >= 0 && first <= end && end <= sequences_, "sequences {} to {} of {}", first, end, sequences_);
  index_.check_size();
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(end - first));
  if (lengths.empty()) return lengths;
  std::memcpy(lengths.data(), index_.at(kLengthsAt + static_cast<std::uint64_t>(first) * kLengthBytes),
              lengths.size() * kLengthBytes);
  const auto negative = std::ranges::find_if(lengths, [](std::int32_t length) { return length < 0; });
  if (negative != lengths.end())
    fail(fmt::format("sequence {} has {} tokens", first + (negative - lengths.begin()), *negative));
  return lengths;
}

std::int64_t IndexedFile::first_sequence(std::int64_t document) const {
  return index_.load<std::int64_t>(kLengthsAt + static_cast<std::uint64_t>(sequences_) * (kLengthBytes + kOffsetBytes) +
                                   static_cast<std::uint64_t>(document) * kOffsetBytes);
}

void IndexedFile::append(std::int64_t sequence, std::int64_t begin, std::optional<std::int64_t> end,
                         std::vector<int>& ids) const {
  index_.check_size();
  const std::int64_t tokens = length(sequence), last = end.value_or(tokens);
  BRAID_CHECK(begin >= 0 && begin <= last && last <= tokens, "tokens {} to {} of {}", begin, last, tokens);
  const auto offset = index_.load<std::int64_t>(kLengthsAt + static_cast<std::uint64_t>(sequences_) * kLengthBytes +
                                                static_cast<std::uint64_t>(sequence) * kOffsetBytes);
  const std::uint64_t item = size_of(type_), size = static_cast<std::uint64_t>(tokens) * item;
  if (offset < 0 || static_cast<std::uint64_t>(offset) > tokens_.size() ||
      size > tokens_.size() - static_cast<std::uint64_t>(offset))
    fail(fmt::format("sequence {} is said to have {} tokens at byte {} of '{}', which has {} bytes", sequence, tokens,
                     offset, tokens_.path(), tokens_.size()));
  const std::string bytes = tokens_.read(static_cast<std::uint64_t>(offset) + static_cast<std::uint64_t>(begin) * item,
                                         static_cast<std::size_t>(last - begin) * item);
  if (const auto wrong = append_tokens(type_, bytes, ids))
    throw DataError(fmt::format("token {} of sequence {} in '{}' is not a number from 0 to {}",
                                begin + static_cast<std::int64_t>(*wrong), sequence, tokens_.path(),
                                std::numeric_limits<int>::max()));
}

std::vector<int> IndexedFile::document(std::int64_t document) const {
  BRAID_CHECK(document >= 0 && document < documents_, "document {} of {}", document, documents_);
  constexpr std::int64_t kMostTokens = 1 << 28;  // far more than any sequence; bounds what a damaged index can cost
  index_.check_size();
  const std::int64_t first = first_sequence(document), end = first_sequence(document + 1);
  if (first < 0 || first > end || end > sequences_)
    fail(fmt::format("document {} is sequences {} to {} of {}", document, first, end, sequences_));
  std::vector<int> ids;
  for (std::int64_t sequence = first; sequence < end; ++sequence) {
    if (length(sequence) > kMostTokens - std::ssize(ids))
      throw DataError(fmt::format("document {} of '{}' has more than {} tokens", document, index_.path(), kMostTokens));
    append(sequence, 0, std::nullopt, ids);
  }
  return ids;
}

std::string IndexedFile::contents_hash() const {
  index_.check_size();
  return sha1(
      ends_of("tokens", tokens_.size(), [&](std::uint64_t at, std::size_t size) { return tokens_.read(at, size); }) +
      ends_of("index", index_.size(), [&](std::uint64_t at, std::size_t size) {
        return std::string(reinterpret_cast<const char*>(index_.at(at)), size);
      }));
}

struct IndexedWriter::Files {
  AtomicFile tokens, index;
  TokenType type;
  std::int64_t written = 0;  // bytes of tokens
  std::vector<std::int32_t> lengths{};
};

IndexedWriter::IndexedWriter(const std::string& prefix, int vocabulary)
    : files_(
          std::make_unique<Files>(Files{.tokens = AtomicFile(prefix + std::string(kIndexedTokens)),
                                        .index = AtomicFile(prefix + std::string(kIndexedIndex)),
                                        .type = vocabulary < kWideVocabulary ? TokenType::Uint16 : TokenType::Int32})) {
}

IndexedWriter::~IndexedWriter() = default;

void IndexedWriter::add_document(std::span<const int> ids) {
  BRAID_CHECK(std::ssize(ids) <= std::numeric_limits<std::int32_t>::max(), "{} tokens", ids.size());
  const std::vector<std::uint16_t> narrow(ids.begin(), files_->type == TokenType::Uint16 ? ids.end() : ids.begin());
  const auto bytes = narrow.empty() ? std::as_bytes(ids) : std::as_bytes(std::span(narrow));
  files_->tokens.write_at(files_->written, bytes);
  files_->written += std::ssize(bytes);
  files_->lengths.push_back(static_cast<std::int32_t>(ids.size()));
}

void IndexedWriter::finish() {
  std::string head(kMagic);
  const auto add = [&](const auto& value) { head.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  add(kVersion);
  add(files_->type);
  add(static_cast<std::uint64_t>(files_->lengths.size()));
  add(static_cast<std::uint64_t>(files_->lengths.size()) + 1);
  std::vector<std::int64_t> offsets, borders = {0};
  std::int64_t offset = 0;
  for (const std::int32_t length : files_->lengths) {
    offsets.push_back(offset);
    offset += length * static_cast<std::int64_t>(size_of(files_->type));
    borders.push_back(std::ssize(offsets));
  }
  std::int64_t at = 0;
  for (const auto bytes : {std::as_bytes(std::span(head)), std::as_bytes(std::span(files_->lengths)),
                           std::as_bytes(std::span(offsets)), std::as_bytes(std::span(borders))}) {
    files_->index.write_at(at, bytes);
    at += std::ssize(bytes);
  }
  files_->tokens.commit();
  files_->index.commit();
}

}  // namespace braid
