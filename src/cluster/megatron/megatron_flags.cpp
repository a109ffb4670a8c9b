#include "cluster/megatron/megatron_flags.h"
#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"

namespace braid {
namespace {

std::vector<std::string> allowed_values(const MegatronFlag& flag, ModelFamily family) {
  std::vector<std::string> allowed;
  if (family != ModelFamily::Hybrid || flag.only_for_hybrid.empty()) allowed = split(flag.only_for, ' ');
  if (family != ModelFamily::Llama && !flag.only_for_hybrid.empty())
    for (std::string& value : split(flag.only_for_hybrid, ' ')) allowed.push_back(std::move(value));
  return allowed;
}

// Several values are joined by spaces.
bool allows(const MegatronFlag& flag, const std::string& value, ModelFamily family) {
  if (flag.verdict == FlagVerdict::Taken && flag.values == FlagValues::Many)
    return flag.otherwise.empty() || value.find(' ') == value.npos;
  if (flag.only_for.empty() || value.empty()) return true;
  const std::vector<std::string> allowed = allowed_values(flag, family), given = split(value, ' ');
  return std::ranges::all_of(given, [&](const std::string& one) {
    const auto number = parse_double(one);
    return std::ranges::any_of(
        allowed, [&](const std::string& each) { return each == one || (number && parse_double(each) == number); });
  });
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
  static const std::map<std::string, std::string> kStronger = {
      // Beside these, --seq-length is the encoder's.
      {"seq-length", "decoder-seq-length total-seq-length packing-seq-length dataloader-seq-length"},
      {"encoder-seq-length", "decoder-seq-length total-seq-length packing-seq-length dataloader-seq-length"},
      {"no-dynamic-resolution", "use-tiling"},
      {"hybrid-override-pattern", "hybrid-layer-pattern"},
      {"vocab-size", "padded-vocab-size"},
      {"tensorboard-log-interval", "log-interval"},
      {"tensor-model-parallel-size", "llm-tp"},
      {"context-parallel-size", "llm-cp"},
      {"pipeline-model-parallel-size", "llm-pp"},
      {"expert-model-parallel-size", "llm-ep"},
      {"expert-tensor-parallel-size", "llm-expt-tp"},
  };
  const auto stronger = kStronger.find(flag);
  return stronger != kStronger.end() && contains(split(stronger->second, ' '), other);
}

const MegatronFlag* find_megatron_flag(std::string_view name) {
  std::string dashed(name);
  std::ranges::replace(dashed, '_', '-');
  const auto& flags = megatron_flags();
  const auto found = std::ranges::lower_bound(flags, dashed, {}, &MegatronFlag::name);
  return found != flags.end() && found->name == dashed ? &*found : nullptr;
}

FlagVerdict verdict_for(const MegatronFlag& flag, const std::string& value, ModelFamily family) {
  const bool other_family = flag.family != ModelFamily::Any && family != ModelFamily::Any && flag.family != family;
  return other_family || !allows(flag, value, family) ? flag.other_verdict : flag.verdict;
}

std::string recipe_value(const MegatronFlag& flag, const std::string& value) {
  if (!flag.value.empty()) return flag.value;
  if (flag.factor == 0) return "N";
  // "norms,experts"; "false" if the recipe needs none of them. A module may be named twice, as in Megatron.
  std::vector<std::string> names;
  for (const std::string& one : split(value, ' '))
    for (const auto& [theirs, ours] : flag.renamed)
      if (theirs == one && !ours.empty() && !contains(names, ours)) names.push_back(ours);
  if (!flag.renamed.empty()) return names.empty() ? "false" : joined(names, ",");
  const auto number = parse_double(value);
  return flag.factor != 1 && number ? fmt::format("{}", flag.factor * *number) : value;
}

std::string megatron_flags_tables() {
  constexpr struct {
    FlagVerdict verdict;
    const char *title, *words, *header;
  } kTables[] = {
      {FlagVerdict::Taken, "Accepted", "A flag whose key is shown with `=value` takes no argument.",
       "| flag | recipe key |\n|---|---|"},
      {FlagVerdict::AlreadySo, "No effect",
       "Braid always does what these flags ask for: `braid train` prints a note and continues. A value in the first "
       "column\nmeans that this is true for that value only.",
       "| flag | why |\n|---|---|"},
      {FlagVerdict::Rewritten, "Use a recipe key instead",
       "Set the key in the recipe, or with `--KEY VALUE` on the command line.",
       "| flag | recipe key | |\n|---|---|---|"},
      {FlagVerdict::Unsupported, "Not supported", "The second column gives the reason or the alternative.",
       "| flag | reason or alternative |\n|---|---|"}};
  std::string page;
  for (const auto& [verdict, title, words, header] : kTables) {
    page += fmt::format("\n## {}\n{}\n\n{}\n", title, words, header);
    for (const MegatronFlag& flag : megatron_flags()) {
      if (flag.verdict != verdict) continue;
      const std::string key = fmt::format("`{}{}{}`", flag.key, flag.value.empty() ? "" : "=", flag.value);
      page += fmt::format("| `--{}{}{}` | ", flag.name, flag.only_for.empty() ? "" : " ",
                          joined(allowed_values(flag, ModelFamily::Any), "/"));
      if (verdict == FlagVerdict::Taken)
        page += key + (flag.otherwise.empty() ? "" : "; several values: " + flag.otherwise);
      else
        page += (verdict == FlagVerdict::Rewritten ? key + " | " : "") + why_cell(flag);
      page += " |\n";
    }
  }
  return page;
}

// --- one answer for all flags --------------------------------------------------------------------------------------
void MegatronAnswer::add(const MegatronFlag& flag, const std::string& value, ModelFamily family) {
  const FlagVerdict verdict = verdict_for(flag, value, family);
  const bool as_usual = verdict == flag.verdict;
  const std::string name = shown(flag, value), why = as_usual ? flag.why : flag.otherwise;
  if (verdict == FlagVerdict::Taken) taken.push_back("--" + flag.name);
  if (verdict == FlagVerdict::AlreadySo) already.push_back({name, why + (as_usual ? family_words(flag, family) : "")});
  if (verdict == FlagVerdict::Unsupported) unsupported.push_back({name, why});
  if (verdict == FlagVerdict::Rewritten)
    rewritten.push_back({name, fmt::format("write --{} {}{}{}", flag.key, recipe_value(flag, value),
                                           why.empty() ? "" : " (" + why + ")", family_words(flag, family))});
}

std::string lines_of(const FlagEntries& entries, const std::string& indent, std::size_t width) {
  FlagEntries by_reason;
  for (auto [flags, why] : entries) {
    std::ranges::replace_if(
        flags, [](unsigned char c) { return c < 32; }, ' ');  // a line break would end a comment
    const auto same = std::ranges::find(by_reason, why, &FlagEntries::value_type::second);
    if (why.empty() || same == by_reason.end())
      by_reason.emplace_back(std::move(flags), std::move(why));
    else
      same->first += ", " + flags;
  }
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
  for (const auto& [title, entries] : {std::pair("use a recipe key instead", &rewritten),
                                       {"not supported", &unsupported},
                                       {"unknown", &unknown},
                                       {"no effect", &already}})
    if (!entries->empty()) text += fmt::format("  {}:\n{}", title, lines_of(*entries, "    ", kWidth));
  if (!taken.empty()) text += fmt::format("  accepted:\n    {}\n", folded(joined(taken, " "), kWidth - 4, "    "));
  return text;
}

// --- sizes --------------------------------------------------------------------------------------------------------
namespace {

// Larger values are typing errors, and their products could overflow.
constexpr int kMostParts = 1024, kMostRanks = 1 << 17, kMostOfAnything = 1 << 30;

// One grid of a two-grid command line, with that program's defaults.
struct GridSizes {
  int offset, tp, cp, pp, dp, ep = 1, expt_tp = 1;
  std::int64_t end() const { return offset + std::int64_t{tp} * cp * pp * dp; }
};

constexpr struct {
  std::string_view names;  // with the prefix "encoder-" or "llm-" if there are two grids
  int GridSizes::*size;
  int most = kMostParts, least = 1;
} kGridSizes[] = {{"tp tensor-model-parallel-size", &GridSizes::tp},
                  {"pp pipeline-model-parallel-size", &GridSizes::pp},
                  {"cp context-parallel-size", &GridSizes::cp},
                  {"ep expert-model-parallel-size", &GridSizes::ep},
                  {"expt-tp etp expert-tensor-parallel-size", &GridSizes::expt_tp},
                  {"dp", &GridSizes::dp, kMostRanks},
                  {"offset", &GridSizes::offset, kMostRanks, 0}};

constexpr struct {
  std::string_view names;
  std::optional<int> ParallelFlags::*size;
} kModelSizes[] = {
    {"micro-batch-size", &ParallelFlags::micro_batch},        {"global-batch-size", &ParallelFlags::global_batch},
    {"num-experts num-moe-experts", &ParallelFlags::experts}, {"hidden-size", &ParallelFlags::hidden},
    {"moe-ffn-hidden-size", &ParallelFlags::expert_ffn},      {"num-layers", &ParallelFlags::layers}};

// Returns whether the size says that there is such a grid.
bool take_grid_size(GridSizes& grid, const std::string& name, int value) {
  for (const auto& [names, size, most, least] : kGridSizes) {
    if (!contains(split(names, ' '), name) || value < least || value > most) continue;
    grid.*size = value;
    return size != &GridSizes::ep && size != &GridSizes::expt_tp;
  }
  return false;
}

}  // namespace

ParallelFlags parallel_flags(const std::vector<std::string>& words) {
  ParallelFlags flags;
  GridSizes only = {.offset = 0, .tp = 1, .cp = 1, .pp = 1, .dp = 1};
  GridSizes encoder = {.offset = 0, .tp = 2, .cp = 1, .pp = 2, .dp = 1};
  GridSizes language = {.offset = 4, .tp = 1, .cp = 1, .pp = 2, .dp = 2, .ep = 2};
  bool two_grids = false, language_only = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (equals == std::string::npos && !words[i].starts_with("--")) continue;
    // "--model.tensor_model_parallel_size" -> "tensor-model-parallel-size"
    std::string name = words[i].substr(0, equals);
    name.erase(0, std::min(name.find_first_not_of("-+"), name.size()));
    name.erase(0, name.rfind('.') + 1);
    std::ranges::replace(name, '_', '-');
    if (name == "swiglu" || name == "gated-linear-unit") flags.gated = true;
    if (name == "llm-only") language_only = true;
    const auto value = equals != std::string::npos ? parse_int(words[i].substr(equals + 1))
                       : i + 1 < words.size()      ? parse_int(words[i + 1])
                                                   : std::nullopt;
    if (!value) continue;
    take_grid_size(only, name, *value);
    for (const auto& [names, size] : kModelSizes)
      if (contains(split(names, ' '), name) && *value >= 1 && *value <= kMostOfAnything) flags.*size = *value;
    if (name.starts_with("encoder-")) two_grids |= take_grid_size(encoder, name.substr(8), *value);
    if (name.starts_with("llm-")) two_grids |= take_grid_size(language, name.substr(4), *value);
  }
  const GridSizes& grid = two_grids ? language : only;
  flags.tp = grid.tp, flags.cp = grid.cp, flags.pp = grid.pp, flags.ep = grid.ep, flags.expt_tp = grid.expt_tp;
  if (two_grids) flags.grid_ranks = language_only ? language.end() : std::max(encoder.end(), language.end());
  return flags;
}

}  // namespace braid
