#include "cluster/doctor/lines/rank_prefix.h"

#include "cluster/doctor/lines/text_pattern.h"

namespace braid {
namespace {

// Prefixes that name a rank, beside the usual ones that take_bracket knows by heart. A blank or colon behind them goes,
// too.
struct RankPrefix {
  const char* pattern;
  bool first = false;     // only at the beginning of a line: elsewhere a bare number is not a rank
  bool labelled = false;  // see LineMarks
};

constexpr RankPrefix kBracketed[] = {
    {"[%k%=%r]"},
    {"[%k%=%r/%n]"},
    {"[%k%=%r|%n]"},
    {"[local_rank%=%l]"},
    {"[local rank%=%l]"},
    {"[Local rank%=%l]"},
    {"[LOCAL_RANK%=%l]"},
    {"[gpu%=%l]"},
    {"[GPU%=%l]"},
    {"[cuda:%l]"},
    {"[xla:%r]"},
    {"[process%=%r]"},  // JAX
    {"[task %r]", true, true},
    {"[%w:%k%=%r]"},                    // "[host:rank3]"
    {"[%w:%r/%n]", true},               // ESPnet: "[host:0/2]"
    {"[%r]<std%w>", true, true},        // horovodrun
    {"[%n,%r]<std%w>", true, true},     // mpirun --tag-output: [job,rank]
    {"[%w@%n,%r]<std%w>", true, true},  // prterun
};
constexpr RankPrefix kBare[] = {
    {"%k%r[%n][%w]:"},  // Composer
    {"%k[%r]"},        {"%k%=%r:"}, {"%k%=%r |"}, {"%k%=%r|"}, {"%k%=%r -"},
    {"%k%=%r>"},       {"%k=%r "},  {"%k:%r "},   {"%k: %r "},
};
constexpr RankPrefix kInParentheses[] = {{"(%k%=%r)"}, {"(%k%=%r/%n)"}};

template <std::size_t N>
bool take_rank_prefix(std::string_view& rest, LineMarks& marks, bool first, const RankPrefix (&table)[N]) {
  for (const RankPrefix& prefix : table) {
    Caught caught;
    const auto length = prefix.first && !first ? std::nullopt : match_front(prefix.pattern, rest, caught);
    if (!length) continue;
    if (caught.rank) {
      marks.rank = caught.rank;
      marks.labelled = prefix.labelled;
    } else {
      marks.local_rank = caught.local_rank;
    }
    rest.remove_prefix(*length);
    return true;
  }
  return false;
}

}  // namespace

bool take_rank_in_brackets(std::string_view& rest, LineMarks& marks, bool first) {
  return take_rank_prefix(rest, marks, first, kBracketed);
}

bool take_rank_in_parentheses(std::string_view& rest, LineMarks& marks) {
  return take_rank_prefix(rest, marks, false, kInParentheses);
}

bool take_bare_rank(std::string_view& rest, LineMarks& marks) { return take_rank_prefix(rest, marks, false, kBare); }

}  // namespace braid
