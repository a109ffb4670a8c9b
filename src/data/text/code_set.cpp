#include "data/text/code_set.h"

#include <algorithm>
#include <iterator>

namespace braid {

CodeSet CodeSet::of(std::vector<std::uint32_t> codes) {
  std::sort(codes.begin(), codes.end());
  codes.erase(std::unique(codes.begin(), codes.end()), codes.end());
  std::vector<std::uint32_t> changes;
  for (const std::uint32_t code : codes) {
    if (changes.empty() || changes.back() != code)
      changes.push_back(code);
    else
      changes.pop_back();  // it continues the range before
    changes.push_back(code + 1);
  }
  return CodeSet(std::move(changes));
}

bool CodeSet::contains(std::uint32_t code) const {
  return (std::upper_bound(changes_.begin(), changes_.end(), code) - changes_.begin()) % 2 == 1;
}

// Membership in one of both changes where exactly one of them changes.
CodeSet CodeSet::operator^(const CodeSet& other) const {
  std::vector<std::uint32_t> changes;
  std::set_symmetric_difference(changes_.begin(), changes_.end(), other.changes_.begin(), other.changes_.end(),
                                std::back_inserter(changes));
  return CodeSet(std::move(changes));
}

CodeSet CodeSet::operator~() const { return *this ^ CodeSet({0}); }

CodeSet CodeSet::operator&(const CodeSet& other) const {
  std::vector<std::uint32_t> changes;
  auto mine = changes_.begin(), theirs = other.changes_.begin();
  bool in_mine = false, in_theirs = false;
  while (mine != changes_.end() || theirs != other.changes_.end()) {
    const bool before = in_mine && in_theirs;
    const bool mine_first = theirs == other.changes_.end() || (mine != changes_.end() && *mine <= *theirs);
    const std::uint32_t code = mine_first ? *mine : *theirs;
    if (mine != changes_.end() && *mine == code) in_mine = !in_mine, ++mine;
    if (theirs != other.changes_.end() && *theirs == code) in_theirs = !in_theirs, ++theirs;
    if ((in_mine && in_theirs) != before) changes.push_back(code);
  }
  return CodeSet(std::move(changes));
}

CodeSet CodeSet::operator|(const CodeSet& other) const { return *this ^ other ^ (*this & other); }

}  // namespace braid
