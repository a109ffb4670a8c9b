#include "doctor/events/run_facts.h"

#include "doctor/events/line_kinds.h"
#include "doctor/lines/rank_names.h"
#include "doctor/lines/text_parts.h"

namespace braid {
namespace {

constexpr std::size_t kMostGroups = 1 << 12, kMostRanks = 1 << 17, kMostAbsent = 1000;

QuotedLine quoted(const SeenLine& line) { return {line.place, line.shown, line.focus}; }

// "1, 3-5"
std::vector<int> ranks_in(std::string_view list) {
  std::string plain(list);
  std::erase(plain, ' ');
  return unfold_ranks(plain);
}

}  // namespace

void note_context(std::string_view body, Findings& findings) {
  const auto keep = [&](std::optional<std::int64_t>& where, const char* key) {
    if (const auto number = number_after(body, key); number && !where) where = number;
  };
  if (has_word(body, "xpert")) {
    for (const char* key : {"num_experts", "num-experts", "num_local_experts", "n_routed_experts"})
      keep(findings.num_experts, key);
    for (const char* key : {"expert_model_parallel_size", "expert-model-parallel-size", "expert_parallel_size"})
      keep(findings.expert_parallel, key);
  }
  if (has_word(body, "orld") || has_word(body, "WORLD"))
    for (const char* key : {"world size", "world_size", "WORLD_SIZE"}) keep(findings.world_size, key);
  if (auto member = behind(body, ", MEMBER: "); member && take_number(*member) && take(*member, "/"))  // Lightning
    if (const auto world = take_number(*member); world && !findings.world_size) findings.world_size = world;
  if (has_word(body, "save_hf_weights") || has_word(body, "save_artifacts") || has_word(body, "save_hf_pretrained"))
    findings.saved_artifacts = true;
  if (mentions_fp8(body) || has_word(body, "scale_inv")) findings.fp8 = true;
  if (has_word(body, "\xe2\x9d\x8c"))
    ++(has_word(body, "expert") ? findings.differing_experts : findings.differing_others);
}

// "[PG ID 0 PG GUID 0(default_pg) Rank 1] ... last enqueued NCCL work: 811, last completed NCCL work: 807."
void note_enqueued(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  const std::size_t at = marks.body.find("ast enqueued");
  const auto work = number_after(marks.body.substr(at), "work");
  const std::size_t group = marks.body.find("[PG "), end = marks.body.find(" Rank", group);
  if (!work || !marks.rank || findings.enqueued.size() >= kMostGroups) return;
  const int groups = static_cast<int>(findings.enqueued.size());
  const std::string name(group == std::string_view::npos ? "" : marks.body.substr(group, end - group));
  QueuedWork& queued =
      findings.enqueued.try_emplace(name, QueuedWork{.last = {}, .first = groups, .least = *work, .line = quoted(line)})
          .first->second;
  if (queued.last.size() >= kMostRanks || !queued.last.emplace(*marks.rank, *work).second || *work >= queued.least)
    return;
  queued.least = *work;
  queued.line = quoted(line);
}

// "Rank 1 failed to pass monitoredBarrier", and Gloo's keys in the store, which end with the rank that did not come.
void note_absent(std::string_view body, const SeenLine& line, Findings& findings) {
  const auto add = [&](std::int64_t rank) {
    if (rank < 1 << 20) findings.named_absent.push_back({static_cast<int>(rank), quoted(line)});
  };
  if (const std::size_t joined = body.find(" clients joined");
      joined != std::string_view::npos) {  // "3/4 clients joined"
    const std::size_t slash = body.substr(0, joined).rfind('/');
    std::string_view rest = body.substr(slash == std::string_view::npos ? joined : slash + 1);
    if (const auto world = take_number(rest)) findings.world_size = world;
  }
  if (findings.named_absent.size() > kMostAbsent) return;
  if (has_word(body, "task at the barrier")) body = behind(body, "task names: ").value_or("");  // JAX: not who came
  if (const auto rank = rank_before_list(body)) add(*rank);                                     // Horovod
  for (const char* words : {"/task:", "missing ranks: ", "not called it: [", "call: ["})        // JAX, Horovod, Ray
    if (const auto behind_words = behind(body, words)) {
      std::string_view rest = *behind_words;
      if (const auto rank = take_number(rest)) add(*rank);
    }
  if (const std::size_t end = body.find(" failed to pass monitoredBarrier"); end != std::string_view::npos) {
    const std::size_t at = body.substr(0, end).rfind("Rank");
    if (at == std::string_view::npos) return;
    std::string_view list = body.substr(at, end - at);
    take(list, "Rank");
    take(list, "s");
    for (const int rank : ranks_in(list)) add(rank);
  }
  if (const auto key = behind(body, "//cpu//")) {
    std::string_view rest = behind(*key, "/").value_or("");
    if (const auto rank = take_number(rest); rank && (rest.empty() || rest[0] == ' ' || rest[0] == ',')) add(*rank);
  }
}

// "[6] finished collective #182, but didn't join collective #183", "ranks [2, 5] are the lagging ranks", "missing
// ranks: {3}"
void note_lagging(const SeenLine& line, Findings& findings) {
  const std::string_view text = line.text;
  for (const char* words : {"] finished collective #", "] are the lagging ranks", "] joined but didn't finish", "}"}) {
    const std::size_t end = text.find(words), open = text.substr(0, end).find_last_of("[{");
    if (end == std::string_view::npos || open == std::string_view::npos) continue;
    const std::vector<int> ranks = ranks_in(text.substr(open + 1, end - open - 1));
    const bool may_all_be_stuck = has_word(words, "didn't finish");
    if (findings.named_absent.size() > kMostAbsent || (may_all_be_stuck && ranks.size() > 1)) return;
    for (const int rank : ranks) findings.named_absent.push_back({rank, quoted(line)});
  }
}

}  // namespace braid
