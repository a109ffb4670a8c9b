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

class Parser {
 public:
  RuleTable parse(std::string_view rules, std::string_view causes) {
    each_row(causes, [&](const std::string& slug, std::string_view line, int number) { cause(slug, line, number); });
    each_row(rules, [&](const std::string& section, std::string_view line, int number) {
      row(section, columns_of(line, number), number);
    });
    BRAID_CHECK_EQ(rules_.causes.size(), static_cast<std::size_t>(Cause::Unknown) + 1, "causes.txt");
    BRAID_CHECK_EQ(rules_.kinds.size(), static_cast<std::size_t>(Sign::Remark) + 1, "[kinds] of rules.txt");
    return std::move(rules_);
  }

 private:
  void cause(const std::string& slug, std::string_view line, int number) {
    std::vector<CauseText>& causes = rules_.causes;
    if (causes.empty() || causes.back().slug != slug) causes.emplace_back().slug = slug;
    const std::string_view key = line.substr(0, line.find(": "));
    const std::string value(line.substr(std::min(key.size() + 2, line.size())));
    if (key == "meaning")
      causes.back().meaning = value;
    else if (key == "fix")
      causes.back().fix = value;
    else if (key == "slurm")
      causes.back().slurm = value;
    else if (key == "kubernetes")
      causes.back().kubernetes = value;
    else if (line == "of the whole job")
      causes.back().of_whole_job = true;
    else
      refuse("causes.txt", number, fmt::format("'{}' is unknown", key));
  }

  Cause cause_named(const std::string& slug, int number) const {
    const auto cause = std::find_if(rules_.causes.begin(), rules_.causes.end(),
                                    [&](const CauseText& text) { return text.slug == slug; });
    if (cause == rules_.causes.end()) refuse("rules.txt", number, fmt::format("'{}' is not a cause", slug));
    return static_cast<Cause>(cause - rules_.causes.begin());
  }

  void kind(const Columns& columns, int number) {
    static const std::vector<std::string> kRoles = {"cause", "outside", "consequence", "launcher", "context"};
    if (columns.words.empty() || !contains(kRoles, columns.words[0])) refuse("rules.txt", number, "a role is missing");
    RuleTable::Kind kind = {.name = columns.name};
    kind.role = static_cast<Role>(std::find(kRoles.begin(), kRoles.end(), columns.words[0]) - kRoles.begin());
    if (columns.words.size() > 1) {
      kind.cause = cause_named(columns.words[1], number);
    }
    signs_.emplace(kind.name, static_cast<Sign>(rules_.kinds.size()));
    rules_.kinds.push_back(std::move(kind));
  }

  void row(const std::string& section, const Columns& columns, int number) {
    if (section == "kinds") return kind(columns, number);
    if (columns.texts.empty()) refuse("rules.txt", number, "a text in quotes is missing");
    const std::string& first = columns.texts[0].text;
    if (section == "words") {
      std::string& words = rules_.words[columns.name];
      for (const Columns::Text& more : columns.texts) words += (words.empty() ? "" : "|") + more.text;
    } else if (section == "signals" && columns.words.size() == 1) {
      rules_.signals.push_back({parse_int(columns.words[0]).value_or(0), cause_named(columns.name, number), first});
    } else if (const auto patterns = pattern_sections_.find(section); patterns != pattern_sections_.end()) {
      patterns->second->push_back({columns.name, first, columns.words});
    } else if (const auto table = rule_sections_.find(section); table != rule_sections_.end()) {
      const auto sign = signs_.find(columns.name);
      if (sign == signs_.end()) refuse("rules.txt", number, fmt::format("'{}' is not a kind", columns.name));
      if (section == "lines" && first.size() < AnchorScan::kShortest)
        refuse("rules.txt", number, fmt::format("'{}' has fewer than {} bytes", first, AnchorScan::kShortest));
      Rule rule;
      rule.sign = sign->second;
      rule.anchor = first;
      for (std::size_t i = 1; i < columns.texts.size(); ++i)
        if (columns.texts[i].sign == '!')
          rule.unless = columns.texts[i].text;
        else
          (section == "advice" ? rule.answers : rule.also).push_back(columns.texts[i].text);
      table->second->push_back(std::move(rule));
    } else {
      refuse("rules.txt", number, fmt::format("there is no section '{}'", section));
    }
  }

  RuleTable rules_;
  std::map<std::string, Sign, std::less<>> signs_;
  const std::map<std::string, std::vector<Rule>*, std::less<>> rule_sections_ = {
      {"lines", &rules_.lines},
      {"exception types", &rules_.exception_types},
      {"exception words", &rules_.exception_words},
      {"last words", &rules_.last_words},
      {"refusals", &rules_.refusals},
      {"noise", &rules_.noise},
      {"outlived", &rules_.outlived},
      {"advice", &rules_.advice}};
  const std::map<std::string, std::vector<PatternRow>*, std::less<>> pattern_sections_ = {
      {"process ends", &rules_.process_ends},
      {"rank prefixes", &rules_.rank_prefixes},
      {"launchers", &rules_.launchers},
      {"ranks in messages", &rules_.message_ranks}};
};

std::vector<std::string> anchors_of(const std::vector<Rule>& rules) {
  std::vector<std::string> anchors;
  for (const Rule& rule : rules) anchors.push_back(rule.anchor);
  return anchors;
}

}  // namespace

bool PatternRow::has(std::string_view option) const { return contains(options, option); }

int PatternRow::value(std::string_view option, int otherwise) const {
  for (std::string_view rest : options)
    if (take(rest, option) && take(rest, "=")) return parse_int(rest).value_or(otherwise);
  return otherwise;
}

RuleTable parse_rules(std::string_view rules, std::string_view causes) { return Parser().parse(rules, causes); }

const RuleTable& rules() {
  static const RuleTable table = parse_rules(kRulesTxt, kCausesTxt);
  return table;
}

Role role_of(Sign sign) { return rules().kinds[static_cast<std::size_t>(sign)].role; }
Cause cause_of(Sign sign) { return rules().kinds[static_cast<std::size_t>(sign)].cause; }
const CauseText& text_of(Cause cause) { return rules().causes[static_cast<std::size_t>(cause)]; }

bool says(std::string_view text, std::string_view list) {
  const auto words = rules().words.find(list);
  BRAID_CHECK(words != rules().words.end(), "[words] of rules.txt has no '{}'", list);
  return has_one_of(text, words->second);
}

bool fits(const Rule& rule, std::string_view text) {
  for (const std::string& words : rule.also)
    if (!has_one_of(text, words)) return false;
  return rule.unless.empty() || !has_one_of(text, rule.unless);
}

std::optional<Sign> sign_by_words(const std::vector<Rule>& section, std::string_view text) {
  for (const Rule& rule : section)
    if (has_one_of(text, rule.anchor) && fits(rule, text)) return rule.sign;
  return std::nullopt;
}

std::optional<Sign> sign_in(std::string_view text) {
  for (const Rule& rule : rules().lines)
    if (has_word(text, rule.anchor) && fits(rule, text)) return rule.sign;
  return std::nullopt;
}

const SignalText* text_of_signal(int signal) {
  const std::vector<SignalText>& all = rules().signals;
  const auto found = std::find_if(all.begin(), all.end(), [&](const SignalText& s) { return s.number == signal; });
  return found == all.end() ? nullptr : &*found;
}

Cause cause_of_signal(int signal) {
  const SignalText* text = text_of_signal(signal);
  return text ? text->cause : Cause::Unknown;
}

const Rule* row_for(const std::vector<Rule>& section, Sign sign, std::string_view text) {
  for (const Rule& row : section)
    if (row.sign == sign && has_one_of(text, row.anchor) && fits(row, text)) return &row;
  return nullptr;
}

std::optional<int> rank_told_by(Sign sign, std::string_view body) {
  const std::string& kind = rules().kinds[static_cast<std::size_t>(sign)].name;
  for (const PatternRow& row : rules().message_ranks)
    if (Caught caught; (row.name == kind || (row.name == "cause" && role_of(sign) == Role::Cause)) &&
                       match_inside(row.pattern, body, caught))
      return caught.rank;
  return std::nullopt;
}

void Launchers::note(std::string_view line) {
  line = line.substr(0, 400);
  for (const PatternRow& row : rules().launchers)
    if (bool& launcher = row.name == "slurm" ? slurm : kubernetes; !launcher) launcher = has_word(line, row.pattern);
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
