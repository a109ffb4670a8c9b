#include "data/shards/key_index.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/strings.h"

#ifdef BRAID_HAS_SQLITE
#include <sqlite3.h>
#endif

namespace braid {
namespace {

[[noreturn]] void refuse_repeated(const std::string& key, const std::string& first_shard, const std::string& shard) {
  throw DataError(fmt::format("the key {} appears in shard '{}' and again in shard '{}': each sample needs its own key",
                              in_quotes(key), first_shard, shard));
}

}  // namespace

#ifdef BRAID_HAS_SQLITE
namespace {

constexpr const char* kCreateTables =
    "CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, "
    "sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER);"
    "CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, "
    "content_byte_offset INTEGER, content_byte_size INTEGER);";
// Created last: filling a table without indexes is faster.
constexpr const char* kCreateIndexes =
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);"
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);"
    "CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, "
    "content_byte_size);";
constexpr const char* kAddSample = "INSERT INTO samples VALUES (?, ?, ?, ?, ?)";
constexpr const char* kAddPart = "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)";
constexpr const char* kFindShard = "SELECT tar_file_id FROM samples WHERE sample_key = ?";

}  // namespace

struct KeyIndex::State {
  std::string path, temporary_path;
  std::vector<std::string> shards;
  sqlite3* database = nullptr;
  sqlite3_stmt *add_sample = nullptr, *add_part = nullptr, *find_shard = nullptr;

  ~State() {
    close();
    if (!temporary_path.empty()) ::unlink(temporary_path.c_str());
  }

  void close() {
    for (sqlite3_stmt** statement : {&add_sample, &add_part, &find_shard})
      sqlite3_finalize(std::exchange(*statement, nullptr));
    sqlite3_close(std::exchange(database, nullptr));
  }

  void check(int code) const {
    if (code != SQLITE_OK && code != SQLITE_DONE && code != SQLITE_ROW)
      throw std::runtime_error(fmt::format("cannot write '{}': {}", path, sqlite3_errmsg(database)));
  }

  void run(const char* commands) const { check(sqlite3_exec(database, commands, nullptr, nullptr, nullptr)); }

  void prepare(const char* text, sqlite3_stmt*& statement) const {
    check(sqlite3_prepare_v2(database, text, -1, &statement, nullptr));
  }

  void bind(sqlite3_stmt* statement, int at, std::uint64_t value) const {
    check(sqlite3_bind_int64(statement, at, static_cast<sqlite3_int64>(value)));
  }

  void bind(sqlite3_stmt* statement, int at, const std::string& value) const {
    check(sqlite3_bind_text64(statement, at, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
  }

  template <class... Values>
  int execute(sqlite3_stmt* statement, const Values&... values) const {
    int at = 0;
    (bind(statement, ++at, values), ...);
    return sqlite3_step(statement);
  }
};

bool KeyIndex::is_supported() { return true; }

KeyIndex::KeyIndex(const std::string& path, std::vector<std::string> shards) : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.path = path;
  state.shards = std::move(shards);
  const std::filesystem::path target(path);
  state.temporary_path = target.parent_path() / fmt::format(".{}.{}.tmp", target.filename().string(), ::getpid());
  ::unlink(state.temporary_path.c_str());
  state.check(sqlite3_open(state.temporary_path.c_str(), &state.database));
  // The file is renamed when it is complete, so a crash needs no journal.
  state.run("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;");
  state.run(kCreateTables);
  state.run("BEGIN");
  state.prepare(kAddSample, state.add_sample);
  state.prepare(kAddPart, state.add_part);
  state.prepare(kFindShard, state.find_shard);
}

void KeyIndex::add(std::uint32_t shard, std::int64_t index_in_shard, const ScannedSample& sample) {
  State& state = *state_;
  const auto index = static_cast<std::uint64_t>(index_in_shard);
  const int code = state.execute(state.add_sample, shard, sample.key, index, sample.begin, sample.end - sample.begin);
  if (code == SQLITE_CONSTRAINT) {
    state.check(state.execute(state.find_shard, sample.key));
    const auto first = static_cast<std::size_t>(sqlite3_column_int64(state.find_shard, 0));
    refuse_repeated(sample.key, state.shards[first], state.shards[shard]);
  }
  state.check(code);
  state.check(sqlite3_reset(state.add_sample));
  for (const ScannedPart& part : sample.parts) {
    state.check(state.execute(state.add_part, shard, index, part.name, part.offset, part.size));
    state.check(sqlite3_reset(state.add_part));
  }
}

void KeyIndex::commit() {
  State& state = *state_;
  state.run("COMMIT");
  state.run(kCreateIndexes);
  state.close();
  if (std::rename(state.temporary_path.c_str(), state.path.c_str()) != 0)
    throw_errno(fmt::format("cannot rename to '{}'", state.path));
  state.temporary_path.clear();
}
#else
struct KeyIndex::State {
  std::vector<std::string> shards;
  std::unordered_map<std::string, std::uint32_t> shard_of_key{};
};

bool KeyIndex::is_supported() { return false; }

KeyIndex::KeyIndex(const std::string&, std::vector<std::string> shards)
    : state_(std::make_unique<State>(State{std::move(shards)})) {}

void KeyIndex::add(std::uint32_t shard, std::int64_t, const ScannedSample& sample) {
  const auto [known, is_new] = state_->shard_of_key.emplace(sample.key, shard);
  if (!is_new) refuse_repeated(sample.key, state_->shards[known->second], state_->shards[shard]);
}

void KeyIndex::commit() {}
#endif

KeyIndex::~KeyIndex() = default;

}  // namespace braid
