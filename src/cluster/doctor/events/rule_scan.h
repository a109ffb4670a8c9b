// Finds the rule that a line matches: first the anchors in it, then the other words of their rules.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cluster/doctor/events/signs.h"
#include "cluster/doctor/lines/anchor_scan.h"

namespace braid {

class RuleScan {
 public:
  RuleScan();

  // Calls found(rule) for each occurrence of each rule's anchor, until it returns false.
  template <class Found>
  void each(std::string_view text, Found found) const {
    scan_.each(text, [&](int rule) { return found(rules_[static_cast<std::size_t>(rule)]); });
  }

  bool has_anchor(std::string_view text) const;

  // The first fitting rule; nullptr when none does. A rule is tried once, however often its anchor stands in the text.
  const Rule* first_fitting(std::string_view text);

  std::uint64_t tries() const { return tries_; }  // of a rule on a text, so far

 private:
  const std::vector<Rule>& rules_;
  const AnchorScan scan_;
  std::vector<std::uint64_t> tried_;  // by rule: the number of the text that it was last tried on
  std::uint64_t texts_ = 0, tries_ = 0;
};

}  // namespace braid
