// A prefix of a kind that no table has, learned from one line: what stands before "Traceback" stands before the lines
// that follow it, too, with another time.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

class PrefixShape {
 public:
  explicit PrefixShape(std::string_view sample);

  // The length of such a prefix at the beginning of line. Times differ, all else is the same.
  std::optional<std::size_t> match(std::string_view line) const;

 private:
  struct Part {
    std::string literal;  // empty: digits of a time
  };
  std::vector<Part> parts_;
};

}  // namespace braid
