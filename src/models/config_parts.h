// What the configs of models share: their checks, and how layers are split into pipeline stages.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/topology.h"

namespace braid {

// Distributes layers over pipeline stages as evenly as possible: stage s has [bounds[s], bounds[s + 1]).
inline std::vector<int> even_stages(int layers, int pp) {
  std::vector<int> bounds;
  for (int stage = 0; stage <= pp; ++stage) bounds.push_back(static_cast<int>(std::int64_t{layers} * stage / pp));
  return bounds;
}

// Far larger than any model: an invalid config must not make the reader list a billion tensors or overflow their sizes.
inline constexpr std::int64_t kMostLayers = 1 << 14, kMostWidth = 1 << 20, kMostVocab = 1 << 24;

class Checks {
 public:
  explicit Checks(std::string where) : where_(std::move(where)) {}

  // From 1 to `most`.
  void size(const char* field, std::int64_t value, std::int64_t most = kMostWidth);
  // `value` must be divisible by `parts`; `split` describes these, e.g. "tp=2 x cp=2". Parts below 1 are ignored, since
  // the check of the layout reports them.
  void divides(const char* field, std::int64_t value, std::int64_t parts, const std::string& split);
  // Context parallelism exchanges sequence shares for heads. Each rank of tp x cp gets whole groups of heads, or a part
  // of the heads of one group.
  struct Heads {
    const char* field;
    std::int64_t count;
  };
  void grouped_heads(const Heads& heads, const Heads& groups, const LayoutSizes& layout);
  // No pipeline stage may be empty.
  void stages(const char* field, int layers, const LayoutSizes& layout);
  void add(const char* field, std::string what, std::string fix);

  bool failed() const { return !problems_.empty(); }
  std::vector<Problem> take() { return std::move(problems_); }

 private:
  std::string where_;
  std::vector<Problem> problems_;
};

}  // namespace braid
