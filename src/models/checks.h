// The rules that model configs share, as sentences.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace braid {

class Checks {
 public:
  explicit Checks(std::string where) : where_(std::move(where)) {}

  void positive(const char* field, std::int64_t value);
  // `value` must split evenly over `parts`; `split` says what they are, e.g. "tp=2 x cp=2".
  void divides(const char* field, std::int64_t value, std::int64_t parts, const std::string& split);
  void add(const char* field, std::string what, std::string fix);

  bool failed() const { return !problems_.empty(); }
  std::vector<Problem> take() { return std::move(problems_); }

 private:
  std::string where_;
  std::vector<Problem> problems_;
};

}  // namespace braid
