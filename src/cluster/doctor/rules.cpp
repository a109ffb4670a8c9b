#include "cluster/doctor/rules.h"

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

[[noreturn]] void refuse(const char* file, int line, const std::string& what) {
  throw ConfigError({what, fmt::format("{}:{}", file, line), "the first lines of the file explain its format"});
}

// Calls row(section, what the section holds, line's text, its number) for each line that is neither empty nor a
// comment.
template <class Row>
void each_row(std::string_view text, Row row) {
  std::map<std::string, std::string> holds;  // by section; "[lines] kinds" says it
  std::string section;
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = trimmed(take_until(text, "\n"));
    if (take(line, "[")) {
      section = take_until(line, "]");
      holds[section] += line;
    } else if (!line.empty() && line[0] != '#') {
      row(section, holds[section], line, number);
    }
  }
}

// A text in quotes off the front of `rest`; nothing where its end is missing.
std::optional<std::string> take_quoted(std::string_view& rest) {
  std::string text;
  for (std::size_t at = 1; at < rest.size(); ++at) {
    if (rest[at] == '"') {
      rest.remove_prefix(at + 1);
      return text;
    }
    if (rest[at] == '\\' && ++at < rest.size()) {
      if (rest[at] == '|') text += '\\';  // it does not divide alternatives
      text += rest[at] == 't' ? '\t' : rest[at] == 'r' ? '\r' : rest[at] == 'n' ? '\n' : rest[at];
    } else {
      text += rest[at];
    }
  }
  return std::nullopt;
}

// A line of rules.txt: a name, then texts in quotes, maybe behind & or !, and bare words.
Rule parse_row(std::string_view line, int number) {
  Rule row;
  char sign = '=';  // of the first text
  for (std::string_view rest = line; !(rest = trimmed(rest)).empty();) {
    if (rest[0] == '"') {
      const auto text = take_quoted(rest);
      if (!text) refuse("rules.txt", number, "its closing quote is missing");
      if (sign == '=' || sign == '!')
        (sign == '=' ? row.anchor : row.unless) = *text;
      else
        (sign == '&' ? row.also : row.answers).push_back(*text);
      sign = ' ';
      continue;
    }
    const std::string word(rest.substr(0, rest.find_first_of(" \t\"")));
    rest.remove_prefix(word.size());
    if (word == "#") break;
    if (word == "&" || word == "!")
      sign = word[0];
    else
      (row.name.empty() ? row.name : row.options.emplace_back()) = word;
  }
  if (row.name.empty()) refuse("rules.txt", number, "the line has no name");
  return row;
}

void add_cause(RuleTable& table, const std::string& slug, std::string_view line, int number) {
  static const std::map<std::string_view, std::string CauseText::*> kTexts = {
      {"meaning", &CauseText::meaning},       {"fix", &CauseText::fix},       {"slurm", &CauseText::slurm},
      {"kubernetes", &CauseText::kubernetes}, {"saving", &CauseText::saving}, {"of", &CauseText::of}};
  if (table.causes.empty() || table.causes.back().slug != slug) table.causes.emplace_back().slug = slug;
  const std::string_view key = take_until(line, ": ");
  const auto text = kTexts.find(key);
  if (text == kTexts.end()) refuse("causes.txt", number, fmt::format("'{}' is unknown", key));
  table.causes.back().*text->second = line;
}

// The number of the element with this name, as an enumerator.
template <class Enum, class List, class Name>
Enum named(const List& list, Name name, const std::string& word, int number, const char* what) {
  const auto found = std::ranges::find(list, word, name);
  if (found == list.end()) refuse("rules.txt", number, fmt::format("'{}' is not a {}", word, what));
  return static_cast<Enum>(found - list.begin());
}

void add_kind(RuleTable& table, const Rule& row, int number) {
  static const std::vector<std::string> kRoles = {"cause", "outside", "consequence", "launcher", "context"};
  if (row.options.empty() || !contains(kRoles, row.options[0])) refuse("rules.txt", number, "a role is missing");
  RuleTable::Kind& kind = table.kinds.emplace_back();
  kind.name = row.name;
  kind.role = named<Role>(kRoles, std::identity(), row.options[0], number, "role");
  kind.is_quoted = row.is("quoted");
  if (row.options.size() > 1)
    kind.cause = named<Cause>(table.causes, &CauseText::slug, row.options[1], number, "cause");
}

// "a|b" -> "a", "b". A bar of its own is "\|".
std::vector<std::string> alternatives_in(std::string_view text) {
  std::vector<std::string> all(1);
  for (std::size_t at = 0; at < text.size(); ++at)
    if (text[at] == '|')
      all.emplace_back();
    else
      all.back() += text[at] == '\\' ? text[++at] : text[at];
  return all;
}

void add_row(RuleTable& table, const std::string& section, const std::string& holds, std::string_view line,
             int number) {
  Rule row = parse_row(line, number);
  if (section == "kinds") return add_kind(table, row, number);
  if (line.find('"') == npos) refuse("rules.txt", number, "a text in quotes is missing");
  if (section == "words") {
    std::string& words = table.words[row.name];
    words += (words.empty() ? "" : "|") + row.anchor;
    return;
  }
  if (holds.empty()) refuse("rules.txt", number, fmt::format("there is no section '{}'", section));
  if (has(holds, "kinds")) row.sign = named<Sign>(table.kinds, &RuleTable::Kind::name, row.name, number, "kind");
  if (has(holds, "causes")) row.cause = named<Cause>(table.causes, &CauseText::slug, row.name, number, "cause");
  const bool is_line = section == "lines";
  std::vector<Rule>& rows = is_line ? table.lines : table.sections[section];
  if (!has(holds, "patterns")) return rows.push_back(std::move(row));
  for (std::string& anchor : alternatives_in(std::exchange(row.anchor, {}))) {
    if (is_line && anchor.size() < AnchorScan::kShortest)
      refuse("rules.txt", number, fmt::format("'{}' has fewer than {} bytes", anchor, AnchorScan::kShortest));
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
  each_row(causes, [&](auto& slug, auto&, auto line, int number) { add_cause(table, slug, line, number); });
  each_row(rules, [&](auto&... row) { add_row(table, row...); });
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

bool Rule::is(std::string_view option) const { return contains(options, option); }

bool Rule::fits(std::string_view text) const {
  return std::ranges::all_of(also, [&](const std::string& words) { return has(text, words); }) &&
         (unless.empty() || !has(text, unless));
}

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
  return *std::ranges::find(rules().causes, slug, &CauseText::slug);
}

const Rule* row_of_signal(int signal) {
  const auto row = std::ranges::find_if(rows_of("signals"), [&](auto& r) { return r.is(std::to_string(signal)); });
  return row == rows_of("signals").end() ? nullptr : &*row;
}

const Rule* matching_row(std::string_view section, std::string_view text, Caught& caught) {
  for (const Rule& row : rows_of(section))
    if (row.fits(text) &&
        (row.is("first") ? match_front(row.anchor, text, caught).has_value() : match_inside(row.anchor, text, caught)))
      return &row;
  return nullptr;
}

std::optional<int> rank_told_by(Sign sign, std::string_view body) {
  const std::string& kind = rules().kinds[static_cast<std::size_t>(sign)].name;
  for (const Rule& row : rows_of("ranks in messages"))
    if (Caught caught; (row.name == kind || (row.name == "cause" && role_of(sign) == Role::Cause)) &&
                       match_inside(row.anchor, body, caught))
      return caught.rank;
  return std::nullopt;
}

AnchorScan::AnchorScan(std::vector<std::string> anchors) : anchors_(std::move(anchors)) {
  for (int number = 0; const std::string& anchor : anchors_) {
    const std::uint32_t slot = slot_of(anchor.data());
    may_begin_.set(slot);
    by_slot_[slot].push_back(number++);
  }
}

RuleScan::RuleScan()
    : rules_(rules().lines),
      scan_([&] {
        std::vector<std::string> anchors;
        for (const Rule& rule : rules_) anchors.push_back(rule.anchor);
        return anchors;
      }()),
      tried_(rules_.size(), 0) {}

const Rule* RuleScan::first_fitting(std::string_view text) {
  ++texts_;
  std::size_t best = rules_.size();
  scan_.each(text, [&](int anchor) {
    const auto rule = static_cast<std::size_t>(anchor);
    if (rule >= best || std::exchange(tried_[rule], texts_) == texts_) return true;
    ++tries_;
    if (rules_[rule].fits(text)) best = rule;
    return true;
  });
  return best < rules_.size() ? &rules_[best] : nullptr;
}

}  // namespace braid
