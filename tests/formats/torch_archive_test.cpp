#include "formats/torch_archive.h"
#include <gtest/gtest.h>

namespace braid {
namespace {

std::uint64_t number(const std::string& bytes, std::size_t at, int size) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, static_cast<std::size_t>(size));
  return value;
}

void write_number(std::string& bytes, std::size_t at, std::uint64_t value, int size) {
  std::memcpy(bytes.data() + at, &value, static_cast<std::size_t>(size));
}

// Of a record beyond 4 GiB, the directory keeps sizes and place in an extra field of 64-bit numbers.
TEST(TorchArchive, EntriesMayHave64BitFields) {
  std::string bytes = write_archive(pickle(std::int64_t{7}));
  const std::size_t locator = bytes.rfind("PK\6\7"), end = number(bytes, locator + 8, 8);
  std::size_t entry = number(bytes, end + 48, 8);
  const auto name_size = [&] { return number(bytes, entry + 28, 2); };
  while (!bytes.substr(entry + 46, name_size()).ends_with("data.pkl"))
    entry += 46 + name_size() + number(bytes, entry + 30, 2) + number(bytes, entry + 32, 2);

  std::string field("\1\0\x18\0", 4);  // id 1, 24 bytes: whole and stored size, place
  for (const int at : {24, 20, 42}) {
    const std::uint64_t value = number(bytes, entry + at, 4);
    field.append(reinterpret_cast<const char*>(&value), sizeof value);
    write_number(bytes, entry + at, 0xffffffff, 4);
  }
  write_number(bytes, entry + 30, number(bytes, entry + 30, 2) + field.size(), 2);
  write_number(bytes, locator + 8, end + field.size(), 8);
  write_number(bytes, end + 40, number(bytes, end + 40, 8) + field.size(), 8);
  bytes.insert(entry + 46 + name_size(), field);

  const PickleValue value = read_archive(bytes, "x.pt");
  ASSERT_TRUE(as<std::int64_t>(value));
  EXPECT_EQ(*as<std::int64_t>(value), 7);
}

}  // namespace
}  // namespace braid
