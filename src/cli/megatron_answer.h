// One answer for all flags of a command line that Braid does not accept directly, grouped by what to do with them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/megatron_flags.h"

namespace braid {

class MegatronAnswer {
 public:
  // `value` is empty if the flag has none.
  void add(const MegatronFlag& flag, const std::string& value, ModelFamily family = ModelFamily::Any);
  void add_unsupported(const std::string& flag, const std::string& instead) { no_.push_back({flag, instead}); }
  void add_unknown(const std::string& flag, const std::string& guess) { unknown_.push_back({flag, guess}); }

  bool accepts_all() const { return rewritten_.empty() && no_.empty() && unknown_.empty(); }
  bool only_unknown() const { return rewritten_.empty() && no_.empty() && !unknown_.empty(); }

  // Flags and their explanations. Flags with the same explanation share a line; all lines begin with `indent` and have
  // at most `width` columns, as far as words allow.
  using Entries = std::vector<std::pair<std::string, std::string>>;
  static std::string lines(const Entries& entries, const std::string& indent, std::size_t width);

  std::string text() const;  // every non-empty group under its title
  const Entries& already() const { return already_; }
  const Entries& unsupported() const { return no_; }
  const Entries& unknown() const { return unknown_; }

 private:
  Entries already_, rewritten_, no_, unknown_;
  std::vector<std::string> taken_;
};

}  // namespace braid
