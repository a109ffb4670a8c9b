// Whether chunks tile their tensors. Let f be the number of chunks that contain an element, minus 1 inside the tensor:
// the chunks tile it if and only if f is 0 everywhere. f is a sum of boxes, and the differences of a box along every
// dimension are +1 or -1 at its corners and 0 elsewhere. So f is 0 if and only if the corners of all boxes cancel.
// Otherwise the first remaining corner, in memory order, is the first element where f is not 0.
#include <algorithm>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/strings.h"
#include "ckpt/dist_metadata.h"
#include "ckpt/file_names.h"

namespace braid {
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr std::size_t kMaxCutDimensions = 8;  // a box has 2^n corners

struct SignedBox {
  const std::int64_t* begin;
  const std::int64_t* size;
  int sign;
};

struct Corner {
  std::int64_t at;
  std::size_t box;
  int sign;
};

class Tiling {
 public:
  explicit Tiling(const DistTensor& tensor) : origin_(tensor.shape.size(), 0) {
    if (!has_elements(tensor.shape)) return;
    boxes_.push_back({origin_.data(), tensor.shape.data(), -1});
    for (const StoredChunk& chunk : tensor.chunks)
      if (has_elements(chunk.size)) boxes_.push_back({chunk.begin.data(), chunk.size.data(), 1});
    for (std::size_t dim = 0; dim < tensor.shape.size(); ++dim)
      if (std::any_of(boxes_.begin(), boxes_.end(),
                      [&](const SignedBox& box) { return box.begin[dim] != 0 || box.size[dim] != tensor.shape[dim]; }))
        cut_.push_back(dim);
  }

  std::size_t cut_dimensions() const { return cut_.size(); }

  struct Defect {
    Sizes element;
    int chunks;  // that contain it
  };
  std::optional<Defect> first_defect() {
    Sizes element = origin_;
    const int count = first_corner(boxes_, 0, element);
    if (count == 0) return std::nullopt;
    return Defect{element, count + 1};
  }

 private:
  static bool has_elements(const Sizes& size) { return std::find(size.begin(), size.end(), 0) == size.end(); }

  // The value at the first corner that does not cancel, whose position is stored in `element`; 0 if all cancel.
  int first_corner(const std::vector<SignedBox>& boxes, std::size_t depth, Sizes& element) const {
    if (depth == cut_.size()) {
      int sum = 0;
      for (const SignedBox& box : boxes) sum += box.sign;
      return sum;
    }
    const std::size_t dim = cut_[depth];
    std::vector<Corner> corners;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      const std::int64_t begin = boxes[i].begin[dim];
      corners.push_back({begin, i, boxes[i].sign});
      corners.push_back({begin + boxes[i].size[dim], i, -boxes[i].sign});
    }
    std::sort(corners.begin(), corners.end(), [](const Corner& a, const Corner& b) { return a.at < b.at; });
    std::vector<SignedBox> here;
    for (std::size_t i = 0; i < corners.size();) {
      here.clear();
      const std::int64_t at = corners[i].at;
      for (; i < corners.size() && corners[i].at == at; ++i) {
        here.push_back(boxes[corners[i].box]);
        here.back().sign = corners[i].sign;
      }
      element[dim] = at;
      if (const int count = first_corner(here, depth + 1, element)) return count;
    }
    return 0;
  }

  Sizes origin_;
  std::vector<SignedBox> boxes_;
  std::vector<std::size_t> cut_;  // dimensions along which chunks divide
};

const char* const kSaveAgain = "the checkpoint is damaged or incomplete: use another one";

void check_tiling(const std::string& key, const DistTensor& tensor, ProblemList& problems) {
  Tiling tiling(tensor);
  if (tiling.cut_dimensions() > kMaxCutDimensions)
    return problems.add(
        fmt::format("{} is cut along {} dimensions, too many to check", in_quotes(key), tiling.cut_dimensions()),
        kIndexFile, "");
  const std::optional<Tiling::Defect> defect = tiling.first_defect();
  if (!defect) return;
  const std::string how = defect->chunks == 0 ? "missing from all chunks" : fmt::format("in {} chunks", defect->chunks);
  problems.add(fmt::format("element {} of {} (shape {}) is {}", shape_text(defect->element), in_quotes(key),
                           shape_text(tensor.shape), how),
               kIndexFile, kSaveAgain);
}

void check_files(const DistMetadata& metadata, ProblemList& problems) {
  struct Owned {
    const FileRange* part;
    const std::string* key;
  };
  std::vector<Owned> parts;
  for (const auto& [key, part] : metadata.objects) parts.push_back({&part, &key});
  for (const auto& [key, tensor] : metadata.tensors)
    for (const StoredChunk& chunk : tensor.chunks) parts.push_back({&chunk.part, &key});
  std::erase_if(parts, [](const Owned& owned) { return owned.part->length == 0; });
  std::stable_sort(parts.begin(), parts.end(), [](const Owned& a, const Owned& b) {
    return std::tie(a.part->file, a.part->offset) < std::tie(b.part->file, b.part->offset);
  });
  const Owned* last = nullptr;  // of the previous parts, the one that ends last
  for (const Owned& owned : parts) {
    const bool same_file = last && last->part->file == owned.part->file;
    if (same_file && owned.part->offset - last->part->offset < last->part->length)
      problems.add(fmt::format("{} and {} overlap at offset {}", in_quotes(*last->key), in_quotes(*owned.key),
                               owned.part->offset),
                   owned.part->file, kSaveAgain);
    if (!same_file || owned.part->offset + owned.part->length > last->part->offset + last->part->length) last = &owned;
  }
}

}  // namespace

std::vector<Problem> coverage_problems(const DistMetadata& metadata) {
  ProblemList problems;
  for (const auto& [key, tensor] : metadata.tensors) check_tiling(key, tensor, problems);
  check_files(metadata, problems);
  return problems.take();
}

}  // namespace braid
