#include "cluster/megatron/parallel_flags.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/strings.h"

namespace braid {
namespace {

// Larger values are typing errors, and their products could overflow.
constexpr int kMostParts = 1024, kMostRanks = 1 << 17, kMostOfAnything = 1 << 30;

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

// "--model.tensor_model_parallel_size" -> "tensor-model-parallel-size"
std::string flag_name(const std::string& word) {
  const std::size_t begin = word.find_first_not_of("-+");
  if (begin == std::string::npos) return "";
  std::string name = word.substr(begin);
  name.erase(0, name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

struct Number {
  std::function<void(Seen&, int)> set;
  int most;
};

const std::map<std::string, Number>& numbers() {
  static const std::map<std::string, Number> kNumbers = [] {
    std::map<std::string, Number> table;
    const auto add = [&table](std::vector<std::string> names, std::function<void(Seen&, int)> set, int most) {
      for (std::string& name : names) table[std::move(name)] = {set, most};
    };
    const auto add_grid = [&add](const std::string& prefix, GridFlags Seen::*grid) {
      const auto size = [&](const char* name, int GridFlags::*field, int most) {
        const auto set = [grid, field](Seen& seen, int n) {
          seen.*grid.*field = n;
          seen.two_grids = true;
        };
        add({prefix + name}, set, most);
      };
      size("offset", &GridFlags::offset, kMostRanks);
      size("tp", &GridFlags::tp, kMostParts);
      size("cp", &GridFlags::cp, kMostParts);
      size("pp", &GridFlags::pp, kMostParts);
      size("dp", &GridFlags::dp, kMostRanks);
    };
    add(
        {"tensor-model-parallel-size", "tp"}, [](Seen& s, int n) { s.flags.tp = n; }, kMostParts);
    add(
        {"pipeline-model-parallel-size", "pp"}, [](Seen& s, int n) { s.flags.pp = n; }, kMostParts);
    add(
        {"context-parallel-size", "cp"}, [](Seen& s, int n) { s.flags.cp = n; }, kMostParts);
    add(
        {"expert-model-parallel-size", "ep"}, [](Seen& s, int n) { s.flags.ep = n; }, kMostParts);
    add(
        {"expert-tensor-parallel-size", "etp"}, [](Seen& s, int n) { s.flags.expt_tp = n; }, kMostParts);
    add(
        {"micro-batch-size"}, [](Seen& s, int n) { s.flags.micro_batch = n; }, kMostOfAnything);
    add(
        {"global-batch-size"}, [](Seen& s, int n) { s.flags.global_batch = n; }, kMostOfAnything);
    add(
        {"num-experts", "num-moe-experts"}, [](Seen& s, int n) { s.flags.experts = n; }, kMostOfAnything);
    add(
        {"hidden-size"}, [](Seen& s, int n) { s.flags.hidden = n; }, kMostOfAnything);
    add(
        {"moe-ffn-hidden-size"}, [](Seen& s, int n) { s.flags.expert_ffn = n; }, kMostOfAnything);
    add(
        {"num-layers"}, [](Seen& s, int n) { s.flags.layers = n; }, kMostOfAnything);
    add(
        {"llm-ep"}, [](Seen& s, int n) { s.language_ep = n; }, kMostParts);
    add(
        {"llm-expt-tp"}, [](Seen& s, int n) { s.language_expt_tp = n; }, kMostParts);
    add_grid("encoder-", &Seen::encoder);
    add_grid("llm-", &Seen::language);
    return table;
  }();
  return kNumbers;
}

}  // namespace

ParallelFlags parallel_flags(const std::vector<std::string>& words) {
  Seen seen;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    const std::string name = flag_name(words[i].substr(0, equals));
    const bool is_flag = equals != std::string::npos || words[i].rfind("--", 0) == 0;
    if (!is_flag) continue;
    if (name == "swiglu" || name == "gated-linear-unit") seen.flags.gated = true;
    if (name == "llm-only") seen.language_only = true;
    const auto number = numbers().find(name);
    if (number == numbers().end()) continue;
    const auto value = equals != std::string::npos ? parse_int(words[i].substr(equals + 1))
                       : i + 1 < words.size()      ? parse_int(words[i + 1])
                                                   : std::nullopt;
    const bool may_be_none = name == "llm-offset" || name == "encoder-offset";
    if (value && *value >= (may_be_none ? 0 : 1) && *value <= number->second.most) number->second.set(seen, *value);
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
