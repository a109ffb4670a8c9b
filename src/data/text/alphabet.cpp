#include <algorithm>

#include "base/utf8.h"
#include "data/text/regex.h"

namespace braid {
namespace {

constexpr std::uint32_t kCodes = 0x110000;

// The next character of a valid text.
std::uint32_t next_character(const unsigned char*& at) {
  const std::uint32_t first = *at++;
  if (first < 0x80) return first;
  const int more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
  std::uint32_t code = first & (0x3fu >> more);
  for (int i = 0; i < more; ++i) code = code << 6 | (*at++ & 0x3fu);
  return code;
}

}  // namespace

Alphabet::Alphabet(const std::vector<CodeSet>& sets) : pages_(kCodes >> 8) {
  std::vector<std::uint32_t> starts = {0, kCodes};
  for (const CodeSet& set : sets) starts.insert(starts.end(), set.changes().begin(), set.changes().end());
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  std::unordered_map<std::string, std::uint16_t> known;  // by the sets that contain it
  for (std::size_t i = 0; starts[i] < kCodes; ++i) {
    std::string memberships;
    for (const CodeSet& set : sets) memberships += set.contains(starts[i]) ? '1' : '0';
    const auto [kind, is_new] = known.emplace(memberships, static_cast<std::uint16_t>(known.size()));
    if (is_new) examples_.push_back(starts[i]);
    fill(starts[i], starts[i + 1], kind->second);
  }
}

// Ranges are filled in order.
void Alphabet::fill(std::uint32_t first, std::uint32_t end, std::uint16_t kind) {
  for (std::uint32_t next; first < end; first = next) {
    next = std::min(end, (first | 0xff) + 1);
    const auto new_page = static_cast<std::uint16_t>(kinds_.size() >> 8);
    if (next - first == 0x100) {
      const auto [page, is_new] = pages_of_one_kind_.emplace(kind, new_page);
      if (is_new) kinds_.resize(kinds_.size() + 0x100, kind);
      pages_[first >> 8] = page->second;
      continue;
    }
    if ((first & 0xff) == 0) {
      pages_[first >> 8] = new_page;
      kinds_.resize(kinds_.size() + 0x100);
    }
    const auto at = kinds_.begin() + (pages_[first >> 8] << 8 | (first & 0xff));
    std::fill(at, at + (next - first), kind);
  }
}

std::vector<std::uint32_t> Alphabet::kinds_of(const CodeSet& set) const {
  std::vector<std::uint32_t> kinds;
  for (std::uint32_t kind = 0; kind < examples_.size(); ++kind)
    if (set.contains(examples_[kind])) kinds.push_back(kind);
  return kinds;
}

void Alphabet::translate(std::string_view text, std::string& kinds) const {
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = at + text.size();
  if (!is_ascii()) {
    kinds.clear();
    while (at != end) append_utf8(kinds, kind_of(next_character(at)));
    return;
  }
  kinds.resize(text.size());
  char* out = kinds.data();
  while (at != end) *out++ = static_cast<char>(kind_of(next_character(at)));
  kinds.resize(static_cast<std::size_t>(out - kinds.data()));
}

}  // namespace braid
