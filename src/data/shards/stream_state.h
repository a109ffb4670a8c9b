// Compact bytes of a stream's state: numbers as variable-length integers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace braid {

class StateWriter {
 public:
  void number(std::uint64_t value);
  void text(std::string_view value);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Each call is a DataError when the bytes end or the value is out of bounds.
class StateReader {
 public:
  explicit StateReader(std::string_view bytes) : rest_(bytes) {}
  std::uint64_t number(std::uint64_t most);
  std::string_view text();
  void expect_end() const;

 private:
  std::string_view rest_;
};

}  // namespace braid
