#include "doctor/traceback_notes.h"

#include <utility>

#include "doctor/exit_notes.h"
#include "doctor/launcher_lines.h"
#include "doctor/line_kinds.h"
#include "doctor/process_ends.h"
#include "doctor/run_facts.h"
#include "doctor/text_parts.h"

namespace braid {
namespace {

constexpr int kNoRank = -1, kLocalRanks = 1 << 24, kLearned = 1 << 25;
constexpr std::size_t kMostHandling = 4096, kMostLearned = 64, kLongestPrefix = 200;

int writer_of(const LineMarks& marks) {
  if (marks.learned) return *marks.learned;
  return marks.rank ? *marks.rank : marks.local_rank ? kLocalRanks + *marks.local_rank : kNoRank;
}

// Who writes behind a prefix may have said its rank in lines before.
std::optional<int> rank_told_before(const PrefixShape& shape, std::string_view recent) {
  for (std::size_t end = recent.size(); end > 0;) {
    const std::size_t begin = recent.rfind('\n', end - 1);
    const std::string_view line = recent.substr(begin == std::string_view::npos ? 0 : begin + 1, end - begin - 1);
    if (const auto length = shape.match(line))
      if (const auto rank = rank_named_in(line.substr(*length))) return rank;
    end = begin == std::string_view::npos ? 0 : begin;
  }
  return std::nullopt;
}

// Exceptions that mean one thing whatever their message says: those of libraries that download, of arithmetic.
std::optional<Sign> sign_of_type(std::string_view type) {
  static constexpr std::pair<const char*, Sign> kTypes[] = {{"huggingface_hub.", Sign::HubUnreachable},
                                                            {"requests.exceptions.", Sign::HubUnreachable},
                                                            {"urllib3.exceptions.", Sign::HubUnreachable},
                                                            {"http.client.", Sign::HubUnreachable},
                                                            {"ssl.SSL", Sign::HubUnreachable},
                                                            {"google.api_core.exceptions.", Sign::HubUnreachable},
                                                            {"gcsfs.", Sign::HubUnreachable},
                                                            {"modelscope.", Sign::HubUnreachable},
                                                            {"urllib.error.", Sign::HubUnreachable},
                                                            {"aiohttp.", Sign::HubUnreachable},
                                                            {"httpx.", Sign::HubUnreachable},
                                                            {"httpcore.", Sign::HubUnreachable},
                                                            {"botocore.", Sign::HubUnreachable},
                                                            {"FloatingPointError", Sign::NanLoss},
                                                            {"ray.exceptions.", Sign::ConnectionLost},
                                                            {"etcd.", Sign::RendezvousFailed}};
  for (const auto& [name, sign] : kTypes)
    if (type.starts_with(name)) return sign;
  return std::nullopt;
}

Sign sign_of_exception(const std::string& exception) {
  if (has_word(exception, "failed to pass monitoredBarrier")) return Sign::CollectiveTimeout;
  auto sign = sign_in(exception);
  if (!sign || role_of(*sign) == Role::Context) {
    if (const auto typed = sign_of_type(exception_type(exception))) sign = typed;
    if (says_not_finite(exception)) sign = Sign::NanLoss;
  }
  const bool says_nothing = !sign || role_of(*sign) == Role::Context || role_of(*sign) == Role::Launcher;
  const bool is_crash = sign == Sign::NativeCrash && !has_word(exception, "killed by signal");
  return says_nothing || is_crash ? Sign::PythonError : *sign;
}

// "During handling of": what was handled is the cause, except for a lookup that failed, which programs do to find out.
bool replaces_lookup(Finding& finding, Findings& findings) {
  if (findings.found.empty() || finding.sign == Sign::PythonError) return false;
  Finding& before = findings.found.back();
  if (!before.traceback || before.rank != finding.rank || before.sign != Sign::PythonError) return false;
  const std::string_view type = exception_type(before.text);
  for (const char* lookup : {"KeyError", "AttributeError", "IndexError", "StopIteration", "FileNotFoundError"})
    if (type == lookup) {
      before = std::move(finding);
      return true;
    }
  return false;
}

Finding unfinished_finding(int writer, const Traceback& traceback, const Findings& findings) {
  Finding finding;
  finding.sign = Sign::PythonError;
  finding.place = traceback.begin;
  finding.shown = "Traceback (most recent call last):";
  if (traceback.frame_line != 0) {
    finding.place.line = traceback.frame_line;
    finding.shown = traceback.frame;
  }
  finding.text = "an exception whose own line is missing, for the log ends inside its traceback";
  finding.local = writer >= kLocalRanks && writer < kLearned;
  if (writer != kNoRank && writer < kLearned) finding.rank = finding.local ? writer - kLocalRanks : writer;
  const auto trace = findings.ranks.find(finding.rank.value_or(kNoRank));
  finding.labelled = trace != findings.ranks.end() && trace->second.labelled;
  finding.traceback = traceback;
  finding.bare = true;
  return finding;
}

}  // namespace

void TracebackNotes::begin(const LineMarks& marks, const Place& place, const SeenLine& line) {
  const std::string_view text = line.text;
  if (not_fatal_ > 0 && place.line <= not_fatal_ + 2 && ignored_.size() < kMostHandling) ignored_.insert(place.line);
  const std::string_view prefix = text.substr(0, text.find("Traceback (most"));
  const std::string_view before = marks.body.substr(0, marks.body.find("Traceback (most"));
  LineMarks known;
  if (learned(text, known)) return tracebacks_.begin(writer_of(known), place);
  ranks_.erase(writer_of(marks));
  const bool is_understood = trimmed(before).empty() || has_word(before, "Original") ||
                             has_word(before, "Exception Group") ||
                             has_word(before, "\xe2\x94\x80");  // the frame that Rich draws
  if (is_understood || prefix.size() > kLongestPrefix) return tracebacks_.begin(writer_of(marks), place);
  learn(prefix, place, line.recent);
}

void TracebackNotes::learn(std::string_view prefix, const Place& place, std::string_view recent) {
  if (learned_.size() == kMostLearned) learned_.erase(learned_.begin());
  const LineMarks marks = marks_of(prefix);
  auto rank = marks.rank ? marks.rank : rank_inside(prefix);
  if (!rank) rank = rank_named_in(prefix);
  const PrefixShape shape(prefix);
  if (!rank) rank = rank_told_before(shape, recent);
  const int writer = learned_.empty() ? kLearned : learned_.back().writer + 1;
  learned_.push_back({shape, writer, rank});
  if (rank) ranks_[writer] = *rank;
  tracebacks_.begin(writer, place);
}

// Where the line has a learned prefix, its marks are those that were learned.
const TracebackNotes::Learned* TracebackNotes::learned(std::string_view text, LineMarks& marks) const {
  for (const Learned& known : learned_)
    if (const auto length = known.shape.match(text)) {
      marks.rank = known.rank;
      marks.learned = known.writer;
      marks.body = text.substr(*length);
      return &known;
    }
  return nullptr;
}

void TracebackNotes::during_handling(const LineMarks& marks) {
  if (handling_.size() < kMostHandling) handling_.insert(writer_of(marks));
}

bool TracebackNotes::take(LineMarks marks, const SeenLine& line, Findings& findings) {
  learned(line.text, marks);
  int writer = writer_of(marks);
  if (const auto before = tracebacks_.adopt(writer, marks.body, line.place.line)) {
    if (const auto rank = ranks_.find(*before); rank != ranks_.end())
      ranks_[writer] = rank->second;
    else if (*before >= 0 && *before < kLocalRanks)
      ranks_[writer] = *before;
  }
  auto fed = tracebacks_.feed(writer, marks.body, line.place.line);
  if (!fed.taken && marks.mentioned) {  // the exception of somebody without a prefix names a rank
    writer = kNoRank;
    fed = tracebacks_.feed(writer, marks.body, line.place.line);
  }
  if (fed.ended) {
    ended(writer, *fed.ended, marks, line, findings);
    return true;
  }
  if (!fed.taken || has_word(marks.body, "Traceback (most recent call last)")) return false;
  note_context(marks.body, findings);
  return true;
}

void TracebackNotes::ended(int writer, const Traceback& traceback, LineMarks marks, const SeenLine& line,
                           Findings& findings) {
  const bool while_handling = handling_.erase(writer) > 0;
  const std::string_view type = exception_type(traceback.exception);
  if (ignored_.erase(traceback.begin.line) > 0) return;
  const bool is_wrapper = has_word(type, "CalledProcessError") || has_word(type, "CheckpointException");
  if (is_wrapper || traceback.in_launcher)
    if (auto exit = ProcessEnds().feed(traceback.exception, line.place.line))
      note_process_end(std::move(*exit), marks, line, findings);
  if (has_word(type, "torch.multiprocessing.spawn.Process")) return spawned(traceback.exception, line, findings);
  if (type == "SystemExit") return;
  Sign sign = sign_of_exception(traceback.exception);
  const bool is_of_network = sign == Sign::NetworkTrouble || sign == Sign::ConnectionLost;
  if (traceback.in_rendezvous && is_of_network) sign = Sign::RendezvousFailed;
  if (traceback.in_launcher && (sign == Sign::PythonError || sign == Sign::Stopped)) return;
  if (sign == Sign::StoreTimeout || has_word(traceback.exception, "monitoredBarrier"))
    note_absent(traceback.exception, findings);
  marks.body = traceback.exception;
  Finding finding = finding_in(sign, marks, line, findings);
  if (const auto rank = ranks_.find(writer); !finding.rank && rank != ranks_.end()) finding.rank = rank->second;
  if (!finding.rank) finding.rank = spawned_rank_;
  if (traceback.begin.own_time) finding.place.time = traceback.begin.time, finding.place.own_time = true;
  if (const auto rank = rank_told_by(sign, traceback.exception); !finding.rank) finding.rank = rank;
  finding.traceback = traceback;
  finding.bare = is_wrapper;
  if (while_handling && replaces_lookup(finding, findings)) return;
  note_context(traceback.exception, findings);
  findings.add(std::move(finding));
}

void TracebackNotes::quoted(std::string_view text, LineMarks marks, const SeenLine& line, Findings& findings) {
  constexpr std::string_view kBreak = "\\n";
  std::string exception;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(kBreak), text.size());
    std::string_view part = text.substr(0, end);
    part = part.substr(0, part.find("\","));
    if (!exception_type(part).empty()) exception = part;
    text.remove_prefix(std::min(end + kBreak.size(), text.size()));
  }
  if (exception.empty()) return;
  marks.body = exception;
  findings.add(finding_in(sign_of_exception(exception), marks, line, findings));
}

void TracebackNotes::spawned(std::string_view body, const SeenLine& line, Findings& findings) {
  if (const auto rank = note_spawned_exit(body, line, findings)) spawned_rank_ = rank;
}

void TracebackNotes::end(Findings& findings) {
  for (const auto& [writer, traceback] : tracebacks_.unfinished())
    if (!traceback.in_launcher) findings.add(unfinished_finding(writer, traceback, findings));
}

}  // namespace braid
