#include "data/shards/tar_writer.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"

namespace braid {
namespace {

constexpr std::size_t kBlock = 512;

}  // namespace

void TarWriter::add(std::string_view name, std::string_view content) {
  BRAID_CHECK(!name.empty() && name.size() <= 100, "the name of a tar member has {} bytes", name.size());
  std::array<char, kBlock> header{};
  const auto put = [&](std::size_t at, std::string_view text) {
    std::copy(text.begin(), text.end(), header.begin() + static_cast<std::ptrdiff_t>(at));
  };
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, fmt::format("{:011o}", content.size()));
  put(136, fmt::format("{:011o}", 0));  // the time
  put(148, "        ");                 // the checksum counts as spaces
  put(156, "0");
  put(257, std::string_view("ustar\0"
                            "00",
                            8));
  const int sum =
      std::accumulate(header.begin(), header.end(), 0, [](int a, char c) { return a + static_cast<unsigned char>(c); });
  put(148, fmt::format("{:06o}", sum));
  header[154] = '\0';
  archive_.append(header.data(), header.size());
  archive_ += content;
  archive_.append((kBlock - content.size() % kBlock) % kBlock, '\0');
}

std::string TarWriter::finish() {
  archive_.append(2 * kBlock, '\0');
  return std::move(archive_);
}

}  // namespace braid
