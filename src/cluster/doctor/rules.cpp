#include "cluster/doctor/rules.h"
#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

void add_cause(RuleTable& table, const std::string& slug, std::string_view line, const RowPlace& place) {
  static const std::vector<std::string> kKeys = {"meaning", "fix", "slurm", "kubernetes", "saving", "of"};
  if (table.causes.empty() || table.causes.back().slug != slug) table.causes.emplace_back().slug = slug;
  const std::string key(take_until(line, ": "));
  if (!contains(kKeys, key)) refuse_row(place, fmt::format("'{}' is unknown", key));
  table.causes.back().texts[key] = line;
}

// The number of the element with this name, as an enumerator.
template <class Enum, class List, class Name>
Enum named(const List& list, Name name, const std::string& word, const RowPlace& place, const char* what) {
  const auto found = std::ranges::find(list, word, name);
  if (found == list.end()) refuse_row(place, fmt::format("'{}' is not a {}", word, what));
  return static_cast<Enum>(found - list.begin());
}

void add_kind(RuleTable& table, const Rule& row, const RowPlace& place) {
  static const std::vector<std::string> kRoles = {"cause", "outside", "consequence", "launcher", "context"};
  if (row.options.empty() || !contains(kRoles, row.options[0])) refuse_row(place, "a role is missing");
  RuleTable::Kind& kind = table.kinds.emplace_back();
  kind.name = row.name;
  kind.role = named<Role>(kRoles, std::identity(), row.options[0], place, "role");
  kind.is_quoted = row.is("quoted");
  if (row.options.size() > 1) kind.cause = named<Cause>(table.causes, &CauseText::slug, row.options[1], place, "cause");
}

void add_row(RuleTable& table, const std::string& section, const std::string& holds, std::string_view line,
             const RowPlace& place) {
  Rule row = {parse_row(line, place)};
  if (section == "kinds") return add_kind(table, row, place);
  if (line.find('"') == npos) refuse_row(place, "a text in quotes is missing");
  if (!has(holds, "patterns") && row.anchor.find('\\') != npos) refuse_row(place, "only patterns may contain \\|");
  if (section == "words") {
    std::string& words = table.words[row.name];
    words += (words.empty() ? "" : "|") + row.anchor;
    return;
  }
  if (holds.empty()) refuse_row(place, fmt::format("there is no section '{}'", section));
  if (has(holds, "kinds")) row.sign = named<Sign>(table.kinds, &RuleTable::Kind::name, row.name, place, "kind");
  if (has(holds, "causes")) row.cause = named<Cause>(table.causes, &CauseText::slug, row.name, place, "cause");
  const bool is_line = section == "lines";
  std::vector<Rule>& rows = is_line ? table.lines : table.sections[section];
  if (!has(holds, "patterns")) return rows.push_back(std::move(row));
  for (std::string& anchor : alternatives_in(std::exchange(row.anchor, {}))) {
    if (!is_line && !is_pattern(anchor)) refuse_row(place, fmt::format("'{}' has an unknown element", anchor));
    if (is_line && anchor.size() < AnchorScan::kShortest)
      refuse_row(place, fmt::format("'{}' has fewer than {} bytes", anchor, AnchorScan::kShortest));
    rows.push_back(row);
    rows.back().anchor = std::move(anchor);
  }
}

template <class Map>
const auto& found_in(const Map& map, std::string_view name, const char* what) {
  const auto found = map.find(name);
  BRAID_CHECK(found != map.end(), "rules.txt has no {} '{}'", what, name);
  return found->second;
}

}  // namespace

RuleTable parse_rules(std::string_view rules, std::string_view causes) {
  RuleTable table;
  each_row("causes.txt", causes,
           [&](auto& slug, auto&, auto line, auto& place) { add_cause(table, slug, line, place); });
  each_row("rules.txt", rules, [&](auto&... row) { add_row(table, row...); });
  BRAID_CHECK_EQ(table.causes.at(static_cast<std::size_t>(Cause::Unknown)).slug, "unknown", "causes.txt");
  BRAID_CHECK_EQ(table.kinds.size(), static_cast<std::size_t>(Sign::Remark) + 1, "[kinds] of rules.txt");
  return table;
}

const RuleTable& rules() {
  static const RuleTable table = parse_rules(kRulesTxt, kCausesTxt);
  return table;
}

const std::vector<Rule>& rows_of(std::string_view section) { return found_in(rules().sections, section, "section"); }
const std::string& words_of(std::string_view list) { return found_in(rules().words, list, "list of words"); }
bool says(std::string_view text, std::string_view list) { return has(text, words_of(list)); }

const Rule* row_for(std::string_view section, std::string_view text, std::optional<Sign> sign) {
  for (const Rule& row : rows_of(section))
    if ((!sign || row.sign == sign) && has(text, row.anchor) && row.fits(text)) return &row;
  return nullptr;
}

std::optional<Sign> sign_in(std::string_view text, const std::function<bool(Sign)>& wanted) {
  for (const Rule& rule : rules().lines)
    if (wanted(rule.sign) && text.find(rule.anchor) != npos && rule.fits(text)) return rule.sign;
  return std::nullopt;
}

const CauseText& text_named(std::string_view slug) {
  const auto found = std::ranges::find(rules().causes, slug, &CauseText::slug);
  BRAID_CHECK(found != rules().causes.end(), "causes.txt has no '{}'", slug);
  return *found;
}

const Rule* row_of_signal(int signal) {
  const auto row = std::ranges::find_if(rows_of("signals"), [&](auto& r) { return r.is(std::to_string(signal)); });
  return row == rows_of("signals").end() ? nullptr : &*row;
}

std::optional<int> rank_told_by(Sign sign, std::string_view body) {
  const std::string& kind = rules().kinds[static_cast<std::size_t>(sign)].name;
  for (const Rule& row : rows_of("ranks in messages"))
    if (Caught caught; (row.name == kind || (row.name == "cause" && role_of(sign) == Role::Cause)) &&
                       match_inside(row.anchor, body, caught))
      return caught.rank;
  return std::nullopt;
}

const Rule* RuleScan::first_fitting(std::string_view text) {
  candidates_.clear();
  scan_.each(text, [&](int rule) { return candidates_.insert(rule), true; });
  for (const int rule : candidates_) {
    ++tries_;
    if (const Rule& candidate = rules_[static_cast<std::size_t>(rule)]; candidate.fits(text)) return &candidate;
  }
  return nullptr;
}

}  // namespace braid
