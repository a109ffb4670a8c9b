#include "cluster/doctor/findings.h"

#include <algorithm>
#include <csignal>

#include "cluster/doctor/messages.h"
#include "cluster/doctor/text.h"

namespace braid {

namespace {

constexpr std::size_t kMostFindings = 4096, kMostRemarks = 16, kMostOfAKind = 512, kMostExits = 4096;
constexpr std::size_t kMostRanks = 1 << 17;
constexpr int kMostLooks = 16;
// A rank that is gone stops the others at the latest when their next step needs it; a log may run a little ahead.
constexpr std::int64_t kIterationsAfterDeath = 3;

}  // namespace

bool earlier(const Place& a, const Place& b) {
  if (a.time && b.time && ((a.own_time && b.own_time) || a.file != b.file)) {
    const double seconds = seconds_between(*a.time, *b.time);
    if (seconds != 0) return seconds > 0;
  }
  return a.file != b.file ? a.file < b.file : a.line < b.line;
}

void Findings::add(Finding finding) {
  if (finding.sign == Sign::Remark) {
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
  if (now.file == forgot_at_.file && now.progress == forgot_at_.progress && now.run == forgot_at_.run) return;
  forgot_at_ = now;
  std::erase_if(found, [&](const Finding& finding) { return survived(finding.place); });
  kept_.clear();
  for (const Finding& finding : found) ++kept_[finding.sign];
}

void Findings::add(WorkerExit exit) {
  if (exits.size() < kMostExits) exits.push_back(std::move(exit));
}

void Findings::add(CollectiveWork work) {
  const auto is_known = [&](const CollectiveWork& other) {
    return other.rank == work.rank && other.group == work.group && other.place.run == work.place.run;
  };
  if (works.size() < kMostExits && std::none_of(works.begin(), works.end(), is_known)) works.push_back(std::move(work));
}

void QueuedWork::add(int rank, const Last& work, const QuotedLine& told) {
  const bool is_least = last.empty() || work.enqueued < least;
  if (last.size() < kMostRanks && last.emplace(rank, work).second && is_least) least = work.enqueued, line = told;
}

void Findings::add_host(int rank, const std::string& host) {
  if (!host.empty() && hosts.size() < kMostRanks) hosts.emplace(rank, host);
}

void Findings::look_for_fp8(std::string_view text) {
  if (!fp8 && looks_for_fp8_++ < kMostLooks) fp8 = mentions_fp8(text);
}

RankTrace* Findings::trace_of(int rank) {
  if (const auto known = ranks.find(rank); known != ranks.end()) return &known->second;
  return ranks.size() < kMostRanks ? &ranks[rank] : nullptr;
}

bool Findings::survived(const Place& place) const {
  const FileTrace& file = files[static_cast<std::size_t>(place.file)];
  // One line may report earlier progress, if it waited in a buffer.
  const bool went_on = file.iterations - place.iterations > kIterationsAfterDeath && file.progress - place.progress > 1;
  return went_on || file.run > place.run || file.good_end > place.line;
}

const FileTrace* Findings::good_end() const {
  for (auto file = files.rbegin(); file != files.rend(); ++file)
    if (file->good_end > 0) return &*file;
  return nullptr;
}

void Findings::settle() {
  if (torchrun) std::erase_if(exits, [](const WorkerExit& exit) { return exit.by_srun; });
  if (torchrun && labels_are_nodes) {
    std::erase_if(ranks, [](const auto& entry) { return entry.second.labelled; });
    for (Finding& finding : found)
      if (finding.labelled) finding.rank.reset();
  }
  settle_runs();
  settle_local_ranks();
  settle_names();
  settle_ends();
  for (const WorkerExit& exit : exits)
    if (!exit.local && exit.ranks.size() == 1) add_host(exit.ranks[0], exit.host);
}

// If a launcher announces a restart that never happens, the lines before it show what ended the run.
void Findings::settle_runs() {
  for (std::size_t number = 0; number < files.size(); ++number) {
    FileTrace& file = files[number];
    const bool says_more = std::any_of(found.begin(), found.end(), [&](const Finding& f) {
      return f.place.file == static_cast<int>(number) && f.place.run == file.run && f.sign != Sign::Stopped;
    });
    if (file.run > 0 && !says_more && file.progress == file.progress_before_run && file.good_end == 0 &&
        !file.said_done && file.script_end == 0)
      --file.run;
  }
}

void Findings::settle_ends() {
  for (std::size_t number = 0; number < files.size(); ++number) {
    FileTrace& file = files[number];
    // If training went on, another process was done.
    const bool is_done = file.said_done && file.progress <= file.said_done->progress + 1;
    const std::uint64_t end = std::max(file.script_end, is_done ? file.said_done->line : 0);
    if (end == 0) continue;
    const bool contradicted = is_contradicted(file, end, static_cast<int>(number));
    end_contradicted = end_contradicted || (contradicted && file.script_end > 0);
    if (!contradicted) file.good_end = std::max(file.good_end, end);
  }
}

// The name of a file proves no rank: if its lines are of several ranks, the name is ignored.
void Findings::settle_names() {
  for (Finding& finding : found) {
    const FileTrace& file = files[static_cast<std::size_t>(finding.place.file)];
    if (finding.by_name && file.has_other_ranks) finding.rank.reset();
  }
}

// An exception after which training did not go on, a process that failed, or Braid's root cause contradict a successful
// end. Ranks that were stopped, or that lost each other when all of them ended, do not. A process that later reports
// its end has handled its exceptions.
bool Findings::is_contradicted(const FileTrace& file, std::uint64_t end, int number) const {
  const auto counts = [&](const Place& place) {
    return place.file == number && (place.line < end || file.script_end < end) && !survived(place) &&
           place.progress == file.progress;
  };
  const auto was_handled = [&](const Finding& f) {
    return f.traceback && !f.bare && file.script_end < end && f.place.line < end && f.rank == file.done_rank;
  };
  const auto tells = [](const Finding& f) {  // why a program ended on its own accord
    return f.traceback || (f.sign == Sign::NanLoss && has_one_of(f.text, "stop|Stop|xit|bort|erminat"));
  };
  return std::any_of(found.begin(), found.end(),
                     [&](const Finding& f) {
                       return role_of(f.sign) == Role::Cause && tells(f) && counts(f.place) && !was_handled(f);
                     }) ||
         any_exit([&](const WorkerExit& e) { return !e.ranks.empty() && e.failed() && counts(e.place); }) ||
         std::any_of(braid.begin(), braid.end(), [&](const RootCauseLine& line) { return counts(line.place); });
}

// torchrun's "[default3]:" is rank 3 on a single node. On several nodes, only its list of failures names the rank.
void Findings::settle_local_ranks() {
  const bool several_nodes =
      any_exit([](const WorkerExit& exit) { return exit.local_rank && exit.ranks[0] != *exit.local_rank; });
  if (!several_nodes) return;
  for (Finding& finding : found) {
    if (!finding.local) continue;
    const auto exit = std::find_if(exits.begin(), exits.end(), [&](const WorkerExit& e) {
      return e.local_rank && e.local_rank == finding.rank && e.root;
    });
    finding.rank = exit == exits.end() ? std::nullopt : std::optional(exit->ranks[0]);
  }
}

namespace {

bool is_host(char c) { return is_word(c) || c == '-' || c == '.'; }

std::string host_after(std::string_view body, std::string_view words) {
  const std::string_view rest = behind(body, words).value_or("");
  std::size_t end = 0;
  while (end < rest.size() && is_host(rest[end])) ++end;
  return std::string(rest.substr(0, end));
}

}  // namespace

std::string host_in(std::string_view body) {
  if (body.find("DUE TO NODE FAILURE") != npos) return "";  // the host it names is another one
  if (const std::size_t star = body.find("*** "); star != npos)
    if (std::string host = host_after(body.substr(star), " ON "); !host.empty()) return host;
  for (const char* words : {"Node failure on ", "connection failure to node ", " failed on node "})
    if (std::string host = host_after(body, words); !host.empty()) return host;
  if (const std::size_t nccl = body.find(" NCCL "); nccl != npos) {  // host:pid:tid [device] NCCL WARN
    const std::size_t colon = body.find(':');
    std::string_view rest = colon < nccl ? body.substr(colon + 1) : std::string_view();
    if (take_number(rest) && rest.starts_with(':')) return std::string(trimmed(body.substr(0, colon)));
  }
  // "slurmstepd-n3: error: ..." in newer versions
  if (const std::size_t step = body.find("slurmstepd-"); step != npos)
    return host_after(body.substr(step), "slurmstepd-");
  if (std::string_view rest = body; take(rest, "srun: error: ")) {
    std::string host = host_after(body, "srun: error: ");
    if (take(rest, host) && rest.starts_with(": ") && host != "Node" && host != "Unable") return host;
  }
  return "";
}

std::string_view kept_of(std::string_view text, std::size_t& focus) {
  constexpr std::size_t kMost = 4000, kBefore = 1000;
  std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  if (text.size() > kMost && focus > begin + kMost - kBefore) begin = focus - kBefore;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) ++begin;
  focus -= std::min(begin, focus);
  return trimmed(text.substr(begin, kMost));
}

Finding finding_in(Sign sign, const LineMarks& marks, const SeenLine& line, Findings& findings) {
  if (sign == Sign::WeightsDiffer) findings.look_for_fp8(line.recent);
  Finding finding;
  finding.sign = sign;
  finding.place = line.place;
  finding.rank = marks.rank ? marks.rank : marks.local_rank;
  finding.host = host_in(marks.body);
  std::size_t focus = marks.body.size() < line.text.size() ? 0 : line.focus;
  finding.text = kept_of(marks.body, focus);
  finding.shown = line.shown;
  finding.focus = line.focus;
  finding.by_name = marks.by_name;
  finding.has_writer = marks.learned.has_value();
  finding.local = !marks.rank && marks.local_rank;
  finding.labelled = marks.labelled && finding.rank == marks.rank;
  if (finding.rank) findings.add_host(*finding.rank, finding.host);
  return finding;
}

}  // namespace braid
