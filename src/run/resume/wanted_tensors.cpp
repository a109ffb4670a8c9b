#include "run/resume/wanted_tensors.h"

#include <set>

#include "base/error.h"

namespace braid {

std::vector<WantedTensor> wanted_of(const std::vector<StoredSet>& sets) {
  std::vector<WantedTensor> wanted;
  for (const StoredSet& set : sets)
    for (const ParamSpec& spec : set.specs)
      for (KeyedShape& tensor : keyed_shapes(spec, set.rule))
        wanted.push_back({std::move(tensor.key), std::move(tensor.shape)});
  return wanted;
}

void check_wanted(const std::vector<WantedTensor>& wanted, const DistCheckpoint& checkpoint, const std::string& fix) {
  constexpr std::size_t kNamed = 20;
  std::set<std::string> problems;
  for (const WantedTensor& tensor : wanted) {
    const auto found = checkpoint.metadata().tensors.find(tensor.key);
    if (found == checkpoint.metadata().tensors.end())
      problems.insert(fmt::format("{} is missing", tensor.key));
    else if (found->second.shape != tensor.shape)
      problems.insert(fmt::format("{} is {}, but the model has {}", tensor.key, shape_text(found->second.shape),
                                  shape_text(tensor.shape)));
  }
  if (problems.empty()) return;
  std::string text = fmt::format("{} does not match the model in {} tensor{}:", checkpoint.folder(), problems.size(),
                                 problems.size() > 1 ? "s" : "");
  std::size_t named = 0;
  for (const std::string& problem : problems)
    if (named++ < kNamed) text += "\n  " + problem;
  if (problems.size() > kNamed) text += fmt::format("\n  and {} more", problems.size() - kNamed);
  throw DataError(text + "\n  " + fix);
}

}  // namespace braid
