#include "cluster/doctor/rules.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "cluster/doctor/text.h"

namespace braid {
namespace {

// What most lines of most logs look like.
constexpr std::string_view kUsual =
    " [2026-11-15 09:40:29.620204] iteration       10/     100 | consumed samples:           80 | elapsed time per "
    "iteration (ms): 639.6 | throughput per GPU (TFLOP/s/GPU): 0.0 | tokens per GPU (tokens/s/GPU): 266.8 | learning "
    "rate: 2.946396E-03 | global batch size:     8 | lm loss: 5.333568E+00 | seq_load_balancing_loss: 1.015603E+00 | "
    "loss scale: 1.0 | grad norm: 1.248 | number of skipped iterations:   0 | number of nan iterations:   0 | time "
    "(ms) | language | waits for images:      10.0 ( 2 %) | forward:   283.9 (44 %) | backward:   259.6 (41 %) | "
    "pipeline wait:    43.7 ( 7 %) | reduce:    10.0 ( 2 %) | optimizer: [rank3]: NCCL INFO Channel 12/0 : 1[2] -> "
    "3[4] [send] via NET/IB/5/GDRDMA Training epoch 0, | reduced_train_loss: | global_step: | validation | loading "
    "shard sample 4711 of shard 00012 has 3211 tokens step 12 INFO root - epoch model layer batch data";

[[noreturn]] void refuse(const char* file, int line, const std::string& what) {
  throw ConfigError({what, fmt::format("{}:{}", file, line), "the first lines of the file explain its format"});
}

// Calls row(section, line's text, its number) for each line that is neither empty nor a comment.
template <class Row>
void each_row(std::string_view text, Row row) {
  std::string section;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.starts_with('[') && line.ends_with(']'))
      section = line.substr(1, line.size() - 2);
    else if (!line.empty() && line[0] != '#')
      row(section, line, number);
  }
}

// One line of rules.txt: a name, then texts in quotes, each with the sign before it, and bare words.
struct Columns {
  struct Text {
    char sign = 0;  // '&', '!' or none
    std::string text;
  };
  std::string name;
  std::vector<Text> texts;
  std::vector<std::string> words;
};

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

Columns columns_of(std::string_view line, int number) {
  Columns columns;
  char sign = 0;
  for (std::string_view rest = line; !(rest = trimmed(rest)).empty();) {
    if (rest[0] == '"') {
      const auto text = take_quoted(rest);
      if (!text) refuse("rules.txt", number, "its closing quote is missing");
      columns.texts.push_back({std::exchange(sign, char()), *text});
      continue;
    }
    const std::string word(rest.substr(0, rest.find_first_of(" \t\"")));
    rest.remove_prefix(word.size());
    if (word == "#") break;
    if (word == "&" || word == "!")
      sign = word[0];
    else
      (columns.name.empty() ? columns.name : columns.words.emplace_back()) = word;
  }
  if (columns.name.empty()) refuse("rules.txt", number, "the line has no name");
  return columns;
}

void add_cause(RuleTable& table, const std::string& slug, std::string_view line, int number) {
  if (table.causes.empty() || table.causes.back().slug != slug) table.causes.emplace_back().slug = slug;
  CauseText& cause = table.causes.back();
  if (line == "of the whole job") {
    cause.of_whole_job = true;
    return;
  }
  const std::pair<std::string_view, std::string*> values[] = {{"meaning: ", &cause.meaning},
                                                              {"fix: ", &cause.fix},
                                                              {"slurm: ", &cause.slurm},
                                                              {"kubernetes: ", &cause.kubernetes}};
  for (const auto& [key, value] : values)
    if (std::string_view rest = line; take(rest, key)) {
      *value = rest;
      return;
    }
  refuse("causes.txt", number, fmt::format("'{}' is unknown", line.substr(0, line.find(": "))));
}

Cause cause_named(const RuleTable& table, const std::string& slug, int number) {
  const auto cause =
      std::find_if(table.causes.begin(), table.causes.end(), [&](const CauseText& text) { return text.slug == slug; });
  if (cause == table.causes.end()) refuse("rules.txt", number, fmt::format("'{}' is not a cause", slug));
  return static_cast<Cause>(cause - table.causes.begin());
}

void add_kind(RuleTable& table, const Columns& columns, int number) {
  static const std::vector<std::string> kRoles = {"cause", "outside", "consequence", "launcher", "context"};
  const auto role = columns.words.empty() ? kRoles.end() : std::find(kRoles.begin(), kRoles.end(), columns.words[0]);
  if (role == kRoles.end()) refuse("rules.txt", number, "a role is missing");
  RuleTable::Kind kind = {.name = columns.name, .role = static_cast<Role>(role - kRoles.begin())};
  if (columns.words.size() > 1) kind.cause = cause_named(table, columns.words[1], number);
  table.kinds.push_back(std::move(kind));
}

Sign sign_named(const RuleTable& table, const std::string& name, int number) {
  const auto kind = std::find_if(table.kinds.begin(), table.kinds.end(), [&](auto& k) { return k.name == name; });
  if (kind == table.kinds.end()) refuse("rules.txt", number, fmt::format("'{}' is not a kind", name));
  return static_cast<Sign>(kind - table.kinds.begin());
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

// Sections of rules whose rows begin with a kind of line, and those of patterns.
const std::vector<std::string> kOfKinds = {"lines",    "exception types", "exception words", "last words",
                                           "refusals", "noise",           "outlived",        "advice"};
const std::vector<std::string> kOfPatterns = {"process ends",      "prefixes",     "numbered prefixes",
                                              "ranks in messages", "absent ranks", "launchers"};

void add_row(RuleTable& table, const std::string& section, const Columns& columns, int number) {
  if (section == "kinds") return add_kind(table, columns, number);
  if (columns.texts.empty()) refuse("rules.txt", number, "a text in quotes is missing");
  const std::string& first = columns.texts[0].text;
  if (section == "words") {
    std::string& words = table.words[columns.name];
    words += (words.empty() ? "" : "|") + first;
    return;
  }
  if (section == "signals") {
    for (const std::string& signal : columns.words)
      table.signals[parse_int(signal).value_or(0)] = {cause_named(table, columns.name, number), first};
    return;
  }
  const bool is_of_kinds = contains(kOfKinds, section);
  if (!is_of_kinds && !contains(kOfPatterns, section))
    refuse("rules.txt", number, fmt::format("there is no section '{}'", section));
  Rule rule;
  rule.name = columns.name;
  rule.anchor = first;
  rule.options = columns.words;
  if (is_of_kinds) rule.sign = sign_named(table, columns.name, number);
  for (std::size_t i = 1; i < columns.texts.size(); ++i)
    if (columns.texts[i].sign == '!')
      rule.unless = columns.texts[i].text;
    else
      (columns.texts[i].sign == '&' ? rule.also : rule.answers).push_back(columns.texts[i].text);
  if (is_of_kinds && section != "lines") return table.sections[section].push_back(std::move(rule));
  for (std::string& anchor : alternatives_in(first)) {
    if (section == "lines" && anchor.size() < AnchorScan::kShortest)
      refuse("rules.txt", number, fmt::format("'{}' has fewer than {} bytes", anchor, AnchorScan::kShortest));
    rule.anchor = std::move(anchor);
    (section == "lines" ? table.lines : table.sections[section]).push_back(rule);
  }
}

std::vector<std::string> anchors_of(const std::vector<Rule>& rules) {
  std::vector<std::string> anchors;
  for (const Rule& rule : rules) anchors.push_back(rule.anchor);
  return anchors;
}

}  // namespace

bool Rule::has(std::string_view option) const { return contains(options, option); }

int Rule::value(std::string_view option, int otherwise) const {
  for (std::string_view rest : options)
    if (take(rest, option) && take(rest, "=")) return parse_int(rest).value_or(otherwise);
  return otherwise;
}

RuleTable parse_rules(std::string_view rules, std::string_view causes) {
  RuleTable table;
  each_row(causes,
           [&](const std::string& slug, std::string_view line, int number) { add_cause(table, slug, line, number); });
  each_row(rules, [&](const std::string& section, std::string_view line, int number) {
    add_row(table, section, columns_of(line, number), number);
  });
  BRAID_CHECK_EQ(table.causes.size(), static_cast<std::size_t>(Cause::Unknown) + 1, "causes.txt");
  BRAID_CHECK_EQ(table.kinds.size(), static_cast<std::size_t>(Sign::Remark) + 1, "[kinds] of rules.txt");
  return table;
}

const RuleTable& rules() {
  static const RuleTable table = parse_rules(kRulesTxt, kCausesTxt);
  return table;
}

const std::vector<Rule>& rows_of(std::string_view section) {
  const auto rows = rules().sections.find(section);
  BRAID_CHECK(rows != rules().sections.end(), "rules.txt has no section '{}'", section);
  return rows->second;
}

Role role_of(Sign sign) { return rules().kinds[static_cast<std::size_t>(sign)].role; }
Cause cause_of(Sign sign) { return rules().kinds[static_cast<std::size_t>(sign)].cause; }
const CauseText& text_of(Cause cause) { return rules().causes[static_cast<std::size_t>(cause)]; }

const std::string& words_of(std::string_view list) {
  const auto words = rules().words.find(list);
  BRAID_CHECK(words != rules().words.end(), "[words] of rules.txt has no '{}'", list);
  return words->second;
}

bool says(std::string_view text, std::string_view list) { return has_one_of(text, words_of(list)); }

bool fits(const Rule& rule, std::string_view text) {
  for (const std::string& words : rule.also)
    if (!has_one_of(text, words)) return false;
  return rule.unless.empty() || !has_one_of(text, rule.unless);
}

std::optional<Sign> sign_by_words(std::string_view section, std::string_view text) {
  for (const Rule& rule : rows_of(section))
    if (has_one_of(text, rule.anchor) && fits(rule, text)) return rule.sign;
  return std::nullopt;
}

std::optional<Sign> sign_in(std::string_view text) {
  for (const Rule& rule : rules().lines)
    if (has_word(text, rule.anchor) && fits(rule, text)) return rule.sign;
  return std::nullopt;
}

const SignalText* text_of_signal(int signal) {
  const auto found = rules().signals.find(signal);
  return found == rules().signals.end() ? nullptr : &found->second;
}

Cause cause_of_signal(int signal) {
  const SignalText* text = text_of_signal(signal);
  return text ? text->cause : Cause::Unknown;
}

const Rule* row_for(std::string_view section, Sign sign, std::string_view text) {
  for (const Rule& row : rows_of(section))
    if (row.sign == sign && has_one_of(text, row.anchor) && fits(row, text)) return &row;
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

void Launchers::note(std::string_view line) {
  line = line.substr(0, 400);
  for (const Rule& row : rows_of("launchers"))
    if (bool& launcher = row.name == "slurm" ? slurm : kubernetes; !launcher) launcher = has_word(line, row.anchor);
}

std::string fix_for(Cause cause, const Launchers& launchers) {
  const CauseText& text = text_of(cause);
  std::string fix = text.fix;
  if (launchers.slurm && !text.slurm.empty()) fix += " " + text.slurm;
  if (launchers.kubernetes && !text.kubernetes.empty()) fix += " " + text.kubernetes;
  return fix;
}

RuleScan::RuleScan() : rules_(rules().lines), scan_(anchors_of(rules_), kUsual), tried_(rules_.size(), 0) {}

bool RuleScan::has_anchor(std::string_view text) const {
  bool found = false;
  scan_.each(text, [&](int) { return found = true, false; });
  return found;
}

const Rule* RuleScan::first_fitting(std::string_view text) {
  ++texts_;
  std::size_t best = rules_.size();
  scan_.each(text, [&](int anchor) {
    const auto rule = static_cast<std::size_t>(anchor);
    if (rule >= best || tried_[rule] == texts_) return true;
    tried_[rule] = texts_;
    ++tries_;
    if (fits(rules_[rule], text)) best = rule;
    return true;
  });
  return best < rules_.size() ? &rules_[best] : nullptr;
}

}  // namespace braid
