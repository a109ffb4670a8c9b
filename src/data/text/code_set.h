// A set of code points.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace braid {

class CodeSet {
 public:
  CodeSet() = default;
  // The code points at which membership changes, in order; the first begins a range of members.
  explicit CodeSet(std::vector<std::uint32_t> changes) : changes_(std::move(changes)) {}
  static CodeSet range(std::uint32_t first, std::uint32_t last) { return CodeSet({first, last + 1}); }
  static CodeSet of(std::vector<std::uint32_t> codes);

  bool contains(std::uint32_t code) const;
  const std::vector<std::uint32_t>& changes() const { return changes_; }

  CodeSet operator~() const;
  CodeSet operator|(const CodeSet& other) const;
  CodeSet operator&(const CodeSet& other) const;
  CodeSet operator^(const CodeSet& other) const;  // in one of both

 private:
  std::vector<std::uint32_t> changes_;
};

}  // namespace braid
