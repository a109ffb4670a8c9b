// The rules that model configs share, as sentences.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/topology.h"

namespace braid {

// Far beyond any model: whoever reads a config that lies must not list a billion tensors, nor overflow their sizes.
inline constexpr std::int64_t kMostLayers = 1 << 14, kMostWidth = 1 << 20, kMostVocab = 1 << 24;

class Checks {
 public:
  explicit Checks(std::string where) : where_(std::move(where)) {}

  // From 1 to `most`.
  void size(const char* field, std::int64_t value, std::int64_t most = kMostWidth);
  // `value` must split evenly over `parts`; `split` says what they are, e.g. "tp=2 x cp=2". Parts below 1 are for
  // whoever checks the layout itself.
  void divides(const char* field, std::int64_t value, std::int64_t parts, const std::string& split);
  // No stage may be empty.
  void stages(const char* field, int layers, const LayoutSizes& layout);
  void add(const char* field, std::string what, std::string fix);

  bool failed() const { return !problems_.empty(); }
  std::vector<Problem> take() { return std::move(problems_); }

 private:
  std::string where_;
  std::vector<Problem> problems_;
};

}  // namespace braid
