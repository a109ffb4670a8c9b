// Malicious checkpoints, or those of a broken disk: each is refused with a printable message, and none takes more
// memory or time than a valid one.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include "base/error.h"
#include "ckpt/checkpoint_tools.h"
#include "ckpt/small_checkpoint.h"
#include "formats/torch_archive.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

std::string repeated(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::string problems_of(const std::string& folder) {
  std::string text;
  for (const Problem& problem : verify_checkpoint(folder).problems) text += problem.what + "\n";
  return text;
}

class HostileCheckpoint : public ::testing::Test {
 protected:
  // A valid one without checksums, which would detect every change.
  HostileCheckpoint() : folder(testing::save(root.path(), 1, {{"a", at::ones({4})}})) {
    fs::remove(folder + "/checksums.json");
    const std::string index = folder + "/.metadata";
    DistMetadata metadata = read_metadata(testing::read_file(index), index);
    metadata.has_checksums = false;
    write(".metadata", write_metadata(metadata));
  }

  std::string load_error() const {
    return error_of<DataError>([&] { DistCheckpoint(folder).common(); });
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder + "/" + name, std::ios::binary) << text;
  }

  const testing::TemporaryFolder root;
  const std::string folder;
};

TEST_F(HostileCheckpoint, IsOtherwiseGood) {
  EXPECT_EQ(load_error(), "no error");
  EXPECT_EQ(problems_of(folder), "");
}

TEST_F(HostileCheckpoint, DeepJsonIsRefused) {
  for (const char* key : {"sharded_backend", "sharded_backend_version", "other"}) {
    write("metadata.json", "{\"sharded_backend\": \"torch_dist\", \"" + std::string(key) +
                               "\": " + repeated("[", 200000) + repeated("]", 200000) + "}");
    EXPECT_THAT(load_error(), HasSubstr("nested more than")) << key;
    EXPECT_THAT(problems_of(folder), HasSubstr("nested more than")) << key;
  }
}

TEST_F(HostileCheckpoint, WhatAFileSaysIsCutAndCleaned) {
  write("metadata.json", "{\"sharded_backend\": \"\\u001b]0;owned\\u0007 \xc2\x9b" + std::string(900'000, 'x') + "\"}");
  const std::string error = load_error();
  EXPECT_LT(error.size(), 1000u);
  EXPECT_THAT(error, AllOf(HasSubstr("in format"), Not(HasSubstr("\x1b")), Not(HasSubstr("\xc2\x9b"))));
}

// Sparse files: they take no space on disk, but would in memory.
TEST_F(HostileCheckpoint, FilesAreOnlyAsLargeAsTheirKind) {
  for (const char* name : {"metadata.json", "common.pt", ".metadata", "checksums.json"}) {
    const bool there = fs::exists(folder + "/" + name);
    const std::string good = testing::read_file(folder + "/" + name);
    if (!there) write(name, "");
    fs::resize_file(folder + "/" + name, std::uintmax_t{10} << 30);
    EXPECT_THAT(load_error(), AllOf(HasSubstr(name), HasSubstr("10.00 GiB, more than"))) << name;
    EXPECT_THAT(problems_of(folder), HasSubstr("10.00 GiB, more than")) << name;
    there ? write(name, good) : static_cast<void>(fs::remove(folder + "/" + name));
  }
  EXPECT_EQ(load_error(), "no error");
}

TEST_F(HostileCheckpoint, OnlyRegularFilesAreRead) {
  const std::string tracker = root.path() + "/latest_checkpointed_iteration.txt";
  const auto tracker_error = [&] { return error_of<DataError>([&] { latest_iteration(root.path()); }); };
  fs::remove(tracker);
  ASSERT_EQ(mkfifo(tracker.c_str(), 0600), 0);
  EXPECT_THAT(tracker_error(), HasSubstr("not a regular file"));
  fs::remove(tracker);
  fs::create_symlink("/dev/zero", tracker);
  EXPECT_THAT(tracker_error(), HasSubstr("not a regular file"));
  fs::remove(tracker);
  fs::create_directory(tracker);
  EXPECT_THAT(tracker_error(), HasSubstr("not a regular file"));
  for (const char* name : {"metadata.json", "common.pt", ".metadata", "__0_0.distcp"}) {
    fs::rename(folder + "/" + name, folder + "/good");
    ASSERT_EQ(mkfifo((folder + "/" + name).c_str(), 0600), 0);
    EXPECT_THAT(load_error(), AllOf(HasSubstr(name), HasSubstr("not a regular file")));
    EXPECT_THAT(problems_of(folder), HasSubstr("not a regular file")) << name;
    fs::rename(folder + "/good", folder + "/" + name);
  }
}

// --- archives

void append(std::string& bytes, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i, value >>= 8) bytes += static_cast<char>(value);
}

struct ZipRecord {
  std::string name, bytes;
  int method = 0;
  std::uint32_t whole = 0;  // the claimed size; 0: the true one
};

// A zip file whose records make these claims.
std::string zip_of(const std::vector<ZipRecord>& records) {
  std::string bytes, directory;
  for (const ZipRecord& record : records) {
    const std::size_t offset = bytes.size();
    const auto fields = [&](std::string& to) {
      append(to, static_cast<std::uint64_t>(record.method), 2);
      append(to, 0, 8);  // time, date, CRC
      append(to, record.bytes.size(), 4);
      append(to, record.whole ? record.whole : record.bytes.size(), 4);
      append(to, record.name.size(), 2);
    };
    append(bytes, 0x04034b50, 4);
    append(bytes, 20, 4);  // version, flags
    fields(bytes);
    append(bytes, 0, 2);
    bytes += record.name + record.bytes;
    append(directory, 0x02014b50, 4);
    append(directory, 20, 2);
    append(directory, 20, 4);
    fields(directory);
    append(directory, 0, 12);  // no extra field, no comment, attributes
    append(directory, offset, 4);
    directory += record.name;
  }
  const std::size_t start = bytes.size();
  bytes += directory;
  append(bytes, 0x06054b50, 4);
  append(bytes, 0, 4);
  append(bytes, records.size(), 2);
  append(bytes, records.size(), 2);
  append(bytes, directory.size(), 4);
  append(bytes, start, 4);
  append(bytes, 0, 2);
  return bytes;
}

TEST_F(HostileCheckpoint, SmallRecordsOfAnArchiveAreSmall) {
  const ZipRecord pickle = {"archive/data.pkl", write_pickle(pickle_dict({{"iteration", braid::pickle(1)}}))};
  const ZipRecord version = {"archive/version", "3\n"};
  const auto error_with = [&](const ZipRecord& record) {
    write("common.pt", zip_of({pickle, version, record}));
    return load_error();
  };
  EXPECT_EQ(error_with({"archive/byteorder", "little"}), "no error");
  // Three gigabytes of zeros, compressed by deflate.
  EXPECT_THAT(error_with({"archive/.data/version", std::string(4000, '\0'), 8, 3u << 30}), HasSubstr("is compressed"));
  EXPECT_THAT(error_with({"archive/.data/serialization_id", std::string(1 << 20, 'x')}), HasSubstr("1048576 bytes"));
  EXPECT_THAT(error_with({"archive/\x1b[2J", "x", 0, 77}), AllOf(HasSubstr("\\x1b[2J"), Not(HasSubstr("\x1b"))));
  std::string huge = zip_of({pickle, version});
  for (int i = 0; i < 4; ++i) huge[huge.size() - 10 + static_cast<std::size_t>(i)] = '\x7f';  // the directory's size
  write("common.pt", huge);
  EXPECT_THAT(load_error(), HasSubstr("a directory of"));
}

// All ways in which names from a checkpoint reach a terminal.
TEST_F(HostileCheckpoint, CommandsPrintNothingThatATerminalObeys) {
  const std::string key = "model.\x1b[2J\x1b]0;owned\x07\xc2\x9b" + std::string(3000, 'x');
  const auto made = [&](const char* name, double value) {
    return testing::save(root.path() + name, 1, {{key, at::full({2}, value)}}, 1, {{key + "/object", pickle(key)}});
  };
  const std::string a = made("/a", 1), b = made("/b", 2);
  fs::resize_file(b + "/__0_0.distcp", 100);
  const std::string c = made("/c", 3);
  const std::vector<std::vector<std::string>> commands = {
      {"ls", a, "--keys"}, {"ls", a, "--keys", "--json"}, {"show", a, key + "/object"}, {"verify", b}, {"diff", a, c}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.begin(), {testing::built_program("braid"), "ckpt"});
    const testing::Finished done = testing::run_program(command);
    EXPECT_THAT(done.out + done.err, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\x07")), Not(HasSubstr("\xc2\x9b"))))
        << command[2];
    EXPECT_GT((done.out + done.err).size(), 20u) << command[2];
  }
}

}  // namespace
}  // namespace braid
