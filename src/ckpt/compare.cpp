#include "ckpt/compare.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "ckpt/dist_metadata.h"
#include "ckpt/tensor_io.h"
#include "plan/param_spec.h"

namespace braid {
namespace {

constexpr std::int64_t kElementsAtOnce = 1 << 22;

at::Tensor read_slab(DistCheckpoint& checkpoint, const std::string& key, const Slab& slab, StoredDtype dtype) {
  at::Tensor values = at::empty(slab.size, scalar_type(dtype));
  checkpoint.read(key, slab.begin, values);
  return values;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

// Viewed as integers, to compare bit by bit.
at::Tensor bits_of(const at::Tensor& values) {
  constexpr at::ScalarType kIntegers[] = {at::kByte, at::kShort, at::kInt, at::kLong};
  return values.view(kIntegers[std::bit_width(values.itemsize()) - 1]);
}

struct Sums {
  std::int64_t different = 0;
  double largest = 0, squared_difference = 0, squared_first = 0;
};

void add_slab(const at::Tensor& a, const at::Tensor& b, Sums& sums) {
  const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
  const at::Tensor same = a.scalar_type() == b.scalar_type()
                              ? bits_of(a).eq(bits_of(b))
                              : wide_a.eq(wide_b).logical_or_(wide_a.isnan() & wide_b.isnan());
  const at::Tensor difference = wide_a.sub(wide_b).masked_fill_(same, 0).abs_();
  sums.different += same.numel() - same.sum().item<std::int64_t>();
  const double largest = difference.max().item<double>();
  if (std::isnan(largest) || largest > sums.largest) sums.largest = largest;
  sums.squared_difference += difference.square_().sum().item<double>();
  sums.squared_first += wide_a.square().sum().item<double>();
}

// Compares bits first, which is fast, and numbers only in tensors that differ.
void compare_tensor(DistCheckpoint& first, DistCheckpoint& second, TensorDifference& result) {
  const std::vector<Slab> slabs = slabs_of(result.first->shape, kElementsAtOnce);
  const auto both = [&](const Slab& slab) {
    return std::pair(read_slab(first, result.key, slab, result.first->dtype),
                     read_slab(second, result.key, slab, result.second->dtype));
  };
  const auto are_same = [&](const Slab& slab) { return std::apply(same_bits, both(slab)); };
  if (num_elements(result.first->shape) == 0) return;
  if (result.first->dtype == result.second->dtype && std::all_of(slabs.begin(), slabs.end(), are_same)) return;
  Sums sums;
  for (const Slab& slab : slabs) {
    const auto [a, b] = both(slab);
    add_slab(a, b, sums);
  }
  result.different = sums.different;
  result.largest = sums.largest;
  result.l2 = std::sqrt(sums.squared_difference);
  result.relative = sums.squared_difference == 0 ? 0 : std::sqrt(sums.squared_difference / sums.squared_first);
}

// NaN counts as the largest difference.
double rank_of(const TensorDifference& tensor) {
  if (!tensor.comparable()) return -1;
  return std::isnan(tensor.largest) ? std::numeric_limits<double>::infinity() : tensor.largest;
}

template <class Map>
std::set<std::string> keys_of(const Map& first, const Map& second) {
  std::set<std::string> keys;
  for (const Map* map : {&first, &second})
    for (const auto& [key, value] : *map) keys.insert(key);
  return keys;
}

// Whether the value contains tensors, of which a pickle has only the names. `seen`: values may be shared.
bool holds_storage(const PickleValue& value, std::set<const PickleNode*>& seen) {
  if (!value || !seen.insert(value.get()).second) return false;
  const auto any = [&](const std::vector<PickleValue>& items) {
    return std::any_of(items.begin(), items.end(), [&](const auto& item) { return holds_storage(item, seen); });
  };
  const auto any_in_dict = [&](const PickleDict& dict) {
    return std::any_of(dict.items.begin(), dict.items.end(), [&](const auto& item) {
      return holds_storage(item.first, seen) || holds_storage(item.second, seen);
    });
  };
  if (as<PicklePersistent>(value)) return true;
  if (const auto* tuple = as<PickleTuple>(value)) return any(tuple->items);
  if (const auto* list = as<PickleList>(value)) return any(list->items);
  if (const auto* dict = as<PickleDict>(value)) return any_in_dict(*dict);
  const auto* object = as<PickleObject>(value);
  return object && (any(object->args) || holds_storage(object->state, seen) || any_in_dict(object->items));
}

// Archives of equal objects may differ if other programs wrote them; their pickles do not.
bool same_object(DistCheckpoint& first, DistCheckpoint& second, const std::string& key) {
  if (first.object_bytes(key) == second.object_bytes(key)) return true;
  const PickleValue ours = first.read_object(key), theirs = second.read_object(key);
  std::set<const PickleNode*> seen;
  return !holds_storage(ours, seen) && !holds_storage(theirs, seen) && write_pickle(ours) == write_pickle(theirs);
}

std::vector<ObjectDifference> compare_objects(DistCheckpoint& first, DistCheckpoint& second) {
  const auto &ours = first.metadata().objects, &theirs = second.metadata().objects;
  std::vector<ObjectDifference> differences;
  for (const std::string& key : keys_of(ours, theirs)) {
    const bool in_first = ours.count(key) > 0, in_second = theirs.count(key) > 0;
    if (!in_first || !in_second || !same_object(first, second, key)) differences.push_back({key, in_first, in_second});
  }
  return differences;
}

const DistTensor* find(const DistMetadata& metadata, const std::string& key) {
  const auto found = metadata.tensors.find(key);
  return found == metadata.tensors.end() ? nullptr : &found->second;
}

}  // namespace

bool Comparison::equal() const {
  return objects.empty() &&
         std::all_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.equal(); });
}

Comparison compare_checkpoints(DistCheckpoint& first, DistCheckpoint& second, const ByteProgress& progress) {
  Comparison comparison;
  std::int64_t done = 0, total = 0;
  for (const std::string& key : keys_of(first.metadata().tensors, second.metadata().tensors)) {
    comparison.tensors.push_back(
        {.key = key, .first = find(first.metadata(), key), .second = find(second.metadata(), key)});
    if (comparison.tensors.back().comparable()) total += bytes_of(*comparison.tensors.back().first);
  }
  for (TensorDifference& tensor : comparison.tensors) {
    if (!tensor.comparable()) continue;
    compare_tensor(first, second, tensor);
    done += bytes_of(*tensor.first);
    if (progress) progress(done, total);
  }
  std::stable_sort(comparison.tensors.begin(), comparison.tensors.end(),
                   [](const auto& a, const auto& b) { return rank_of(a) > rank_of(b); });
  comparison.objects = compare_objects(first, second);
  return comparison;
}

TensorStatistics statistics_of(DistCheckpoint& checkpoint, const std::string& key, std::int64_t first_values) {
  const DistTensor& tensor = checkpoint.metadata().tensors.at(key);
  TensorStatistics result;
  double sum = 0, squares = 0;
  std::int64_t finite = 0;
  for (const Slab& slab : slabs_of(tensor.shape, kElementsAtOnce)) {
    if (num_elements(slab.size) == 0) continue;
    const at::Tensor values = read_slab(checkpoint, key, slab, tensor.dtype).to(at::kDouble).flatten();
    for (std::int64_t i = 0; i < values.numel() && std::ssize(result.first) < first_values; ++i)
      result.first.push_back(values[i].item<double>());
    result.nans += values.isnan().sum().item<std::int64_t>();
    result.infinities += values.isinf().sum().item<std::int64_t>();
    const at::Tensor numbers = values.masked_select(values.isfinite());
    if (numbers.numel() == 0) continue;
    const double least = numbers.min().item<double>(), largest = numbers.max().item<double>();
    result.least = finite == 0 ? least : std::min(result.least, least);
    result.largest = finite == 0 ? largest : std::max(result.largest, largest);
    finite += numbers.numel();
    sum += numbers.sum().item<double>();
    squares += numbers.square().sum().item<double>();
  }
  result.mean = finite > 0 ? sum / static_cast<double>(finite) : 0;
  result.l2 = std::sqrt(squares);
  return result;
}

}  // namespace braid
