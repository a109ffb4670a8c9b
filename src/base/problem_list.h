// Collects problems to report together. A file from elsewhere may have millions; the first ones are kept, the rest are
// counted.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/strings.h"

namespace braid {

class ProblemList {
 public:
  void add(std::string what, std::string where, std::string fix) {
    if (++count_ <= kKept) problems_.push_back({std::move(what), std::move(where), std::move(fix)});
  }
  bool empty() const { return count_ == 0; }
  std::vector<Problem> take() {
    if (count_ > kKept)
      problems_.push_back({"and " + counted(static_cast<std::int64_t>(count_ - kKept), "more problem"), "", ""});
    count_ = 0;
    return std::exchange(problems_, {});
  }
  void throw_if_any() {
    if (!empty()) throw ConfigError(take());
  }

 private:
  static constexpr std::size_t kKept = 50;
  std::vector<Problem> problems_;
  std::size_t count_ = 0;
};

}  // namespace braid
