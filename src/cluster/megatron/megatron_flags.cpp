#include "cluster/megatron/megatron_flags.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"

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

// "norms,experts"; "false" if the recipe needs none of them. A module may be named twice, as in Megatron.
std::string renamed_values(const MegatronFlag& flag, const std::string& values) {
  std::vector<std::string> names;
  for (const std::string& value : split(values, ' '))
    for (const auto& [theirs, ours] : flag.renamed)
      if (theirs == value && !ours.empty() && !contains(names, ours)) names.push_back(ours);
  return names.empty() ? "false" : fmt::format("{}", fmt::join(names, ","));
}

constexpr std::size_t kLongestValue = 40, kWidth = 80;

std::string shown(const MegatronFlag& flag, const std::string& value) {
  if (value.empty()) return "--" + flag.name;
  return fmt::format("--{} {}", flag.name,
                     value.size() > kLongestValue ? value.substr(0, kLongestValue) + "..." : value);
}

std::string family_words(const MegatronFlag& flag, ModelFamily family) {
  if (family != ModelFamily::Any || flag.family == ModelFamily::Any) return "";
  return fmt::format(" ({}; {})", flag.family == ModelFamily::Llama ? "Llama" : "hybrid", flag.otherwise);
}

}  // namespace

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

// --- one answer for all flags --------------------------------------------------------------------------------------
void MegatronAnswer::add(const MegatronFlag& flag, const std::string& value, ModelFamily family) {
  const FlagVerdict verdict = verdict_for(flag, value, family);
  const std::string name = shown(flag, value);
  const bool as_usual = verdict == flag.verdict;
  const std::string why = as_usual ? flag.why : flag.otherwise;
  if (verdict == FlagVerdict::Taken) taken_.push_back("--" + flag.name);
  if (verdict == FlagVerdict::AlreadySo) already_.push_back({name, why + (as_usual ? family_words(flag, family) : "")});
  if (verdict == FlagVerdict::Unsupported) no_.push_back({name, why});
  if (verdict == FlagVerdict::Rewritten)
    rewritten_.push_back({name, fmt::format("write --{} {}{}{}", flag.key, recipe_value(flag, value),
                                            why.empty() ? "" : " (" + why + ")", family_words(flag, family))});
}

std::string MegatronAnswer::lines(const Entries& entries, const std::string& indent, std::size_t width) {
  Entries by_reason;
  for (const auto& entry : entries) {
    const auto same = std::find_if(by_reason.begin(), by_reason.end(), [&](const auto& other) {
      return !entry.second.empty() && other.second == entry.second;
    });
    if (same == by_reason.end())
      by_reason.push_back(entry);
    else
      same->first += ", " + entry.first;
  }
  // Line breaks would end a comment.
  for (auto& entry : by_reason)
    for (char& c : entry.first)
      if (static_cast<unsigned char>(c) < 32) c = ' ';
  const std::size_t room = width - indent.size();
  const std::string deeper = indent + "    ";
  std::string text;
  for (const auto& [flags, why] : by_reason) {
    if (why.empty())
      text += indent + folded(flags, room - 4, deeper) + "\n";
    else if (flags.size() + 2 + why.size() <= room)
      text += indent + flags + ": " + why + "\n";
    else
      text += indent + folded(flags + ":", room, indent, ", ") + "\n" + deeper + folded(why, room - 4, deeper) + "\n";
  }
  return text;
}

std::string MegatronAnswer::text() const {
  std::string text;
  const auto group = [&](const char* title, const Entries& entries) {
    if (!entries.empty()) text += fmt::format("  {}:\n{}", title, lines(entries, "    ", kWidth));
  };
  group("use a recipe key instead", rewritten_);
  group("not supported", no_);
  group("unknown", unknown_);
  group("no effect", already_);
  if (!taken_.empty())
    text += fmt::format("  accepted:\n    {}\n", folded(fmt::format("{}", fmt::join(taken_, " ")), kWidth - 4, "    "));
  return text;
}

// --- sizes --------------------------------------------------------------------------------------------------------
namespace {

// One grid of a two-grid command line, with that program's defaults.
struct GridFlags {
  int offset, tp, cp, pp, dp;
  std::int64_t end() const { return offset + std::int64_t{tp} * cp * pp * dp; }
};

struct Seen {
  ParallelFlags flags{};
  GridFlags encoder = {.offset = 0, .tp = 2, .cp = 1, .pp = 2, .dp = 1};
  GridFlags language = {.offset = 4, .tp = 1, .cp = 1, .pp = 2, .dp = 2};
  int language_ep = 2, language_expt_tp = 1;
  bool two_grids = false, language_only = false;
};

// Larger values are typing errors, and their products could overflow.
constexpr int kMostParts = 1024, kMostRanks = 1 << 17, kMostOfAnything = 1 << 30;

struct Size {
  std::string_view names;
  int most;
  void (*set)(Seen&, int);
};

constexpr Size kSizes[] = {
    {"tensor-model-parallel-size tp", kMostParts, [](Seen& s, int n) { s.flags.tp = n; }},
    {"pipeline-model-parallel-size pp", kMostParts, [](Seen& s, int n) { s.flags.pp = n; }},
    {"context-parallel-size cp", kMostParts, [](Seen& s, int n) { s.flags.cp = n; }},
    {"expert-model-parallel-size ep", kMostParts, [](Seen& s, int n) { s.flags.ep = n; }},
    {"expert-tensor-parallel-size etp", kMostParts, [](Seen& s, int n) { s.flags.expt_tp = n; }},
    {"micro-batch-size", kMostOfAnything, [](Seen& s, int n) { s.flags.micro_batch = n; }},
    {"global-batch-size", kMostOfAnything, [](Seen& s, int n) { s.flags.global_batch = n; }},
    {"num-experts num-moe-experts", kMostOfAnything, [](Seen& s, int n) { s.flags.experts = n; }},
    {"hidden-size", kMostOfAnything, [](Seen& s, int n) { s.flags.hidden = n; }},
    {"moe-ffn-hidden-size", kMostOfAnything, [](Seen& s, int n) { s.flags.expert_ffn = n; }},
    {"num-layers", kMostOfAnything, [](Seen& s, int n) { s.flags.layers = n; }},
    {"llm-ep", kMostParts, [](Seen& s, int n) { s.language_ep = n; }},
    {"llm-expt-tp", kMostParts, [](Seen& s, int n) { s.language_expt_tp = n; }},
};

struct GridSize {
  std::string_view name;
  int GridFlags::*size;
  int most, least = 1;
};

constexpr GridSize kGridSizes[] = {{"offset", &GridFlags::offset, kMostRanks, 0},
                                   {"tp", &GridFlags::tp, kMostParts},
                                   {"cp", &GridFlags::cp, kMostParts},
                                   {"pp", &GridFlags::pp, kMostParts},
                                   {"dp", &GridFlags::dp, kMostRanks}};

// "--model.tensor_model_parallel_size" -> "tensor-model-parallel-size"
std::string flag_name(const std::string& word) {
  std::string name = word.substr(std::min(word.find_first_not_of("-+"), word.size()));
  name.erase(0, name.rfind('.') + 1);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

void take_size(Seen& seen, const std::string& name, int value) {
  for (const Size& size : kSizes)
    if (contains(split(size.names, ' '), name) && value >= 1 && value <= size.most) size.set(seen, value);
  for (const auto& [prefix, grid] : {std::pair("encoder-", &Seen::encoder), std::pair("llm-", &Seen::language)})
    for (const GridSize& size : kGridSizes) {
      if (!name.starts_with(prefix) || name.substr(std::string_view(prefix).size()) != size.name) continue;
      if (value < size.least || value > size.most) continue;
      seen.*grid.*size.size = value;
      seen.two_grids = true;
    }
}

}  // namespace

ParallelFlags parallel_flags(const std::vector<std::string>& words) {
  Seen seen;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (equals == std::string::npos && !words[i].starts_with("--")) continue;
    const std::string name = flag_name(words[i].substr(0, equals));
    if (name == "swiglu" || name == "gated-linear-unit") seen.flags.gated = true;
    if (name == "llm-only") seen.language_only = true;
    const auto value = equals != std::string::npos ? parse_int(words[i].substr(equals + 1))
                       : i + 1 < words.size()      ? parse_int(words[i + 1])
                                                   : std::nullopt;
    if (value) take_size(seen, name, *value);
  }
  if (seen.two_grids) {
    ParallelFlags& flags = seen.flags;
    flags.tp = seen.language.tp, flags.cp = seen.language.cp, flags.pp = seen.language.pp;
    flags.ep = seen.language_ep, flags.expt_tp = seen.language_expt_tp;
    flags.grid_ranks = seen.language_only ? seen.language.end() : std::max(seen.encoder.end(), seen.language.end());
  }
  return seen.flags;
}

}  // namespace braid
