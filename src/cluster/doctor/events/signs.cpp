#include "cluster/doctor/events/signs.h"

namespace braid {

Role role_of(Sign sign) {
  if (sign <= Sign::NativeCrash) return Role::Cause;
  if (sign <= Sign::TerminatedFromOutside) return Role::Outside;
  if (sign <= Sign::Stopped) return Role::Consequence;
  return sign <= Sign::MonitoredBarrier ? Role::Launcher : Role::Context;
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> table = [] {
    std::vector<Rule> all;
    for (const auto part : {launcher_rules(), ending_rules(), process_rules(), mismatch_rules(), hub_rules(),
                            waiting_rules(), device_rules(), number_rules(), error_rules(), start_rules(),
                            crash_rules(), run_rules(), progress_rules(), remark_rules()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return table;
}

bool fits(const Rule& rule, std::string_view text) {
  return (!rule.also || text.find(rule.also) != std::string_view::npos) &&
         (!rule.unless || text.find(rule.unless) == std::string_view::npos);
}

std::optional<Sign> sign_in(std::string_view text) {
  for (const Rule& rule : rules())
    if (text.find(rule.anchor) != std::string_view::npos && fits(rule, text)) return rule.sign;
  return std::nullopt;
}

}  // namespace braid
