#include "cli/megatron_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "cli/megatron_table.h"

namespace braid {
namespace {

bool same_value(const std::string& a, const std::string& b) {
  const auto x = parse_double(a), y = parse_double(b);
  return x && y ? *x == *y : a == b;
}

std::vector<std::string> allowed_values(const MegatronFlag& flag, ModelFamily family) {
  std::vector<std::string> allowed;
  if (family != ModelFamily::Hybrid || flag.only_for_hybrid.empty()) allowed = split(flag.only_for, ' ');
  if (family != ModelFamily::Llama && !flag.only_for_hybrid.empty())
    for (std::string& value : split(flag.only_for_hybrid, ' ')) allowed.push_back(std::move(value));
  return allowed;
}

// Several values are joined by spaces.
bool allows(const MegatronFlag& flag, const std::string& value, ModelFamily family) {
  if (flag.verdict == FlagVerdict::Taken && flag.values == FlagValues::Many) return value.find(' ') == value.npos;
  if (flag.only_for.empty() || value.empty()) return true;
  const std::vector<std::string> allowed = allowed_values(flag, family), given = split(value, ' ');
  return std::all_of(given.begin(), given.end(), [&](const std::string& one) {
    return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& a) { return same_value(a, one); });
  });
}

std::string code(const std::string& text) { return "`" + text + "`"; }

std::string key_cell(const MegatronFlag& flag) {
  return code(flag.value.empty() ? flag.key : flag.key + "=" + flag.value);
}

std::string flag_cell(const MegatronFlag& flag) {
  return code(
      "--" + flag.name +
      (flag.only_for.empty() ? "" : fmt::format(" {}", fmt::join(allowed_values(flag, ModelFamily::Any), "/"))));
}

std::string why_cell(const MegatronFlag& flag) {
  std::string text = flag.why;
  if (text.empty() && flag.family != ModelFamily::Any)
    text = flag.family == ModelFamily::Llama ? "Llama only" : "hybrid only";
  if (!flag.otherwise.empty() && flag.otherwise != flag.why)
    text += fmt::format("; {}{}", flag.only_for.empty() ? "" : "other values: ", flag.otherwise);
  // An unescaped bar would start another cell.
  for (std::size_t bar = text.find('|'); bar != text.npos; bar = text.find('|', bar + 2)) text.insert(bar, 1, '\\');
  return text;
}

void add_table(std::string& page, FlagVerdict verdict, const std::string& title, const std::string& words,
               const std::string& header) {
  page += fmt::format("\n## {}\n{}\n\n{}\n", title, words, header);
  for (const MegatronFlag& flag : megatron_flags()) {
    if (flag.verdict != verdict) continue;
    if (verdict == FlagVerdict::Taken)
      page += fmt::format("| {} | {}{} |\n", flag_cell(flag), key_cell(flag),
                          flag.otherwise.empty() ? "" : "; several values: " + flag.otherwise);
    else if (verdict == FlagVerdict::Rewritten)
      page += fmt::format("| {} | {} | {} |\n", flag_cell(flag), key_cell(flag), why_cell(flag));
    else
      page += fmt::format("| {} | {} |\n", flag_cell(flag), why_cell(flag));
  }
}

}  // namespace

const std::vector<MegatronFlag>& megatron_flags() {
  static const std::vector<MegatronFlag> flags = [] {
    std::vector<MegatronFlag> rows;
    add_model_rows(rows);
    add_data_rows(rows);
    add_run_rows(rows);
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    for (std::size_t i = 1; i < rows.size(); ++i)
      BRAID_CHECK(rows[i - 1].name != rows[i].name, "--{} is in the table twice", rows[i].name);
    return rows;
  }();
  return flags;
}

bool gives_way(const std::string& flag, const std::string& other) {
  static const std::map<std::string, std::vector<std::string>> kStronger = {
      // Beside these, --seq-length is the encoder's.
      {"seq-length", {"decoder-seq-length", "total-seq-length", "packing-seq-length", "dataloader-seq-length"}},
      {"encoder-seq-length", {"decoder-seq-length", "total-seq-length", "packing-seq-length", "dataloader-seq-length"}},
      {"no-dynamic-resolution", {"use-tiling"}},
      {"hybrid-override-pattern", {"hybrid-layer-pattern"}},
      {"vocab-size", {"padded-vocab-size"}},
      {"tensorboard-log-interval", {"log-interval"}},
      {"tensor-model-parallel-size", {"llm-tp"}},
      {"context-parallel-size", {"llm-cp"}},
      {"pipeline-model-parallel-size", {"llm-pp"}},
      {"expert-model-parallel-size", {"llm-ep"}},
      {"expert-tensor-parallel-size", {"llm-expt-tp"}},
  };
  const auto stronger = kStronger.find(flag);
  return stronger != kStronger.end() && contains(stronger->second, other);
}

const MegatronFlag* find_megatron_flag(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  const auto& flags = megatron_flags();
  const auto found = std::lower_bound(flags.begin(), flags.end(), dashed,
                                      [](const MegatronFlag& flag, const std::string& n) { return flag.name < n; });
  return found != flags.end() && found->name == dashed ? &*found : nullptr;
}

FlagVerdict verdict_for(const MegatronFlag& flag, const std::string& value, ModelFamily family) {
  const bool other_family = flag.family != ModelFamily::Any && family != ModelFamily::Any && flag.family != family;
  return other_family || !allows(flag, value, family) ? flag.other_verdict : flag.verdict;
}

namespace {

// "norms,experts"; "false" if the recipe needs none of them. A module may be named twice, as in Megatron.
std::string renamed_values(const MegatronFlag& flag, const std::string& values) {
  std::vector<std::string> names;
  for (const std::string& value : split(values, ' '))
    for (const auto& [theirs, ours] : flag.renamed)
      if (theirs == value && !ours.empty() && !contains(names, ours)) names.push_back(ours);
  return names.empty() ? "false" : fmt::format("{}", fmt::join(names, ","));
}

}  // namespace

std::string recipe_value(const MegatronFlag& flag, const std::string& value) {
  if (!flag.value.empty()) return flag.value;
  if (!flag.renamed.empty()) return renamed_values(flag, value);
  if (flag.factor == 0) return "N";
  const auto number = parse_double(value);
  return flag.factor != 1 && number ? fmt::format("{}", flag.factor * *number) : value;
}

std::string megatron_flags_tables() {
  std::string page;
  add_table(page, FlagVerdict::Taken, "Accepted", "A flag whose key is shown with `=value` takes no argument.",
            "| flag | recipe key |\n|---|---|");
  add_table(
      page, FlagVerdict::AlreadySo, "No effect",
      "Braid always does what these flags ask for: `braid train` prints a note and continues. A value in the first "
      "column\nmeans that this is true for that value only.",
      "| flag | why |\n|---|---|");
  add_table(page, FlagVerdict::Rewritten, "Use a recipe key instead",
            "Set the key in the recipe, or with `--KEY VALUE` on the command line.",
            "| flag | recipe key | |\n|---|---|---|");
  add_table(page, FlagVerdict::Unsupported, "Not supported", "The second column gives the reason or the alternative.",
            "| flag | reason or alternative |\n|---|---|");
  return page;
}

std::string megatron_flags_list(std::size_t width) {
  std::string list;
  for (std::string line : split(megatron_flags_tables(), '\n')) {
    const bool is_flag = line.starts_with("| `"), is_header = line.starts_with('|') && !is_flag;
    if (is_header) continue;
    if (is_flag) line = line.substr(2, line.find_last_not_of(" |") - 1);
    for (const auto& [mark, plain] :
         {std::pair(" | ", ": "), std::pair("`", ""), std::pair("\\|", "|"), std::pair("## ", "")})
      for (std::size_t at = line.find(mark); at != line.npos; at = line.find(mark, at))
        line.replace(at, std::string_view(mark).size(), plain);
    list += folded(line, width - 4, "    ") + "\n";
  }
  return list;
}

}  // namespace braid
