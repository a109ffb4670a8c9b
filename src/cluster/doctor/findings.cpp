#include "cluster/doctor/findings.h"

namespace braid {

namespace {

constexpr std::size_t kMostFindings = 4096, kMostRemarks = 16, kMostOfAKind = 512;
constexpr std::size_t kMostRanks = 1 << 17, kMostWorks = 1 << 14;

}  // namespace

bool earlier(const Place& a, const Place& b) {
  if (a.time && b.time && ((a.own_time && b.own_time) || a.file != b.file)) {
    const double seconds = seconds_between(*a.time, *b.time);
    if (seconds != 0) return seconds > 0;
  }
  return std::tie(a.file, a.line) < std::tie(b.file, b.line);
}

std::string_view kept_of(std::string_view text, std::size_t& focus) {
  constexpr std::size_t kMost = 4000, kBefore = 1000;
  std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  if (text.size() > kMost && focus > begin + kMost - kBefore) begin = focus - kBefore;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) ++begin;
  focus -= std::min(begin, focus);
  return trimmed(text.substr(begin, kMost));
}

Finding Findings::finding_in(Sign sign, const Line& line) {
  constexpr int kMostLooks = 16;  // the lines before are many
  if (sign == Sign::WeightsDiffer && !fp8 && looks_for_fp8_++ < kMostLooks) fp8 = mentions_fp8(line.recent);
  const LineMarks& marks = line.marks;
  Finding finding;
  static_cast<Quote&>(finding) = line;
  finding.sign = sign;
  finding.rank = marks.own_rank();
  finding.host = host_in(marks.body);
  std::size_t focus = marks.body.size() < line.text.size() ? 0 : line.focus;
  finding.text = kept_of(marks.body, focus);
  finding.by_name = marks.by_name;
  finding.has_writer = marks.learned.has_value();
  finding.local = !marks.rank && marks.local_rank;
  finding.labelled = marks.labelled && finding.rank == marks.rank;
  if (finding.rank) add_host(*finding.rank, finding.host);
  return finding;
}

void Findings::add(Finding finding) {
  if (finding.is(Sign::Remark)) {
    if (remarks.size() == kMostRemarks) remarks.erase(remarks.begin());
    remarks.push_back(std::move(finding));
    return;
  }
  if (!has_room(finding.sign)) forget_survived(finding.place);
  if (!has_room(finding.sign)) return;
  ++kept_[finding.sign];
  found.push_back(std::move(finding));
}

bool Findings::has_room(Sign sign) const {
  const auto kept = kept_.find(sign);
  return found.size() < kMostFindings && (kept == kept_.end() || kept->second < kMostOfAKind);
}

// Does nothing unless training went on since the last call: otherwise there is nothing new to forget.
void Findings::forget_survived(const Place& now) {
  if (std::tie(now.file, now.progress, now.run) == std::tie(forgot_at_.file, forgot_at_.progress, forgot_at_.run))
    return;
  forgot_at_ = now;
  std::erase_if(found, [&](const Finding& finding) { return survived(finding.place); });
  kept_.clear();
  for (const Finding& finding : found) ++kept_[finding.sign];
}

void Findings::add_work(const CollectiveWork& work) {
  if (works.size() < kMostWorks)
    works.try_emplace({work.group, work.operation.empty(), work.place.run, work.rank}, work);
}

void Findings::add_host(int rank, const std::string& host) {
  if (!host.empty() && hosts.size() < kMostRanks) hosts.emplace(rank, host);
}

RankTrace* Findings::trace_of(int rank) {
  return ranks.contains(rank) || ranks.size() < kMostRanks ? &ranks[rank] : nullptr;
}

bool Findings::survived(const Place& place) const {
  // A rank that is gone stops the others at the latest when their next step needs it; a log may run a little ahead.
  constexpr std::int64_t kIterationsAfterDeath = 3;
  const FileTrace& file = file_of(place);
  // One line may report earlier progress, if it waited in a buffer.
  const bool went_on = file.iterations - place.iterations > kIterationsAfterDeath && file.progress - place.progress > 1;
  return went_on || file.run > place.run || file.good_end.place.line > place.line;
}

void Findings::settle() {
  if (any_exit(&WorkerExit::by_torchrun)) std::erase_if(exits, std::mem_fn(&WorkerExit::by_srun));
  const bool labels_are_nodes = any_exit([](const WorkerExit& exit) { return exit.node.has_value(); });
  if (labels_are_nodes) std::erase_if(ranks, [](const auto& entry) { return entry.second.labelled; });
  // torchrun's "[default3]:" is rank 3 on a single node. On several nodes, only its list of failures names the rank.
  const bool has_nodes =
      any_exit([](const auto& exit) { return exit.local_rank && exit.ranks[0] != *exit.local_rank; });
  for (Finding& finding : found) {
    if (finding.local && has_nodes) {
      const auto is_its = [&](const WorkerExit& e) { return e.local_rank && e.local_rank == finding.rank && e.root; };
      const auto exit = std::ranges::find_if(exits, is_its);
      finding.rank = exit == exits.end() ? std::nullopt : std::optional(exit->ranks[0]);
    }
    // The name of a file proves no rank: if its lines are of several ranks, the name is ignored.
    const bool is_by_name = finding.by_name && file_of(finding.place).has_other_ranks;
    if (is_by_name || (finding.labelled && labels_are_nodes)) finding.rank.reset();
  }
  for (int number = 0; FileTrace & file : files) settle_end(file, number++);
  for (const WorkerExit& exit : exits)
    for (const int rank : exit.ranks)
      if (exit.ranks.size() == 1 || (exit.failed() && !has(exit.host, "["))) add_host(rank, exit.host);
}

void Findings::settle_end(FileTrace& file, int number) {
  // If a launcher announces a restart that never happens, the lines before it show what ended the run.
  const bool says_more = std::ranges::any_of(found, [&](const Finding& f) {
    return f.place.file == number && f.place.run == file.run && !f.is(Sign::Stopped);
  });
  if (file.run > 0 && !says_more && file.progress == file.progress_before_run && file.good_end.place.line == 0)
    --file.run;
  // If training went on, another process was done.
  Quote end = file.script_end;
  const auto& done = file.said_done;
  if (done && file.progress <= done->place.progress + 1 && done->place.line > end.place.line) end = *done;
  const bool contradicted = is_contradicted(file, end.place.line, number);
  end_contradicted |= contradicted && file.script_end.place.line > 0;
  if (!contradicted && end.place.line > file.good_end.place.line) file.good_end = end;
}

// An exception after which training did not go on, or a process that failed contradict a successful end. Ranks that
// were stopped, or that lost each other when all of them ended, do not. A process that later reports its end has
// handled its exceptions.
bool Findings::is_contradicted(const FileTrace& file, std::uint64_t end, int number) const {
  const auto is_last = [&](const Place& place) { return place.file == number && place.progress == file.progress; };
  const auto tells = [&](const Finding& f) {  // why a program ended on its own accord
    const bool was_handled = file.script_end.place.line < end && f.place.line < end && f.rank == file.said_done->rank;
    return f.role() == Role::Cause && is_last(f.place) && (f.traceback ? f.bare || !was_handled : f.is(Sign::NanLoss));
  };
  return std::ranges::any_of(found, tells) ||
         any_exit([&](const WorkerExit& e) { return !e.ranks.empty() && e.failed() && is_last(e.place); });
}

}  // namespace braid
