#include "cluster/doctor/traceback.h"

#include <algorithm>
#include <utility>

#include "cluster/doctor/line_marks.h"
#include "cluster/doctor/messages.h"
#include "cluster/doctor/process_ends.h"
#include "cluster/doctor/rules.h"
#include "cluster/doctor/run_facts.h"
#include "cluster/doctor/text.h"

namespace braid {

namespace {

constexpr std::size_t kMostOpen = 4096;
constexpr int kMostLines = 3000, kLastWords = 20;
constexpr std::size_t kLongestText = 2000;

// The end of a path: folders above the last two only say where somebody keeps the code.
std::string_view near_end(std::string_view path) {
  std::size_t at = path.size();
  for (int i = 0; i < 3 && at != npos && at > 0; ++i) at = path.rfind('/', at - 1);
  return at == npos || at == 0 ? path : path.substr(at);
}

// True for .../data/x.py, but not for /data/x.py, where /data is a disk.
bool is_in_data_folder(std::string_view path) {
  const std::size_t file = path.rfind('/');
  if (file == npos || file == 0) return false;
  const std::size_t folder = path.rfind('/', file - 1);
  return folder != npos && folder > 0 && path.substr(folder, file - folder) == "/data";
}

void note_frame(std::string_view frame, Traceback& traceback) {
  const std::size_t open = frame.find('"'), close = frame.find('"', open + 1);
  if (close == npos) return;
  const std::string_view path = frame.substr(open + 1, close - open - 1);
  const std::size_t in = frame.rfind(", in ");
  const std::string function = in == npos ? "" : in_small_letters(frame.substr(in));
  const std::string file = in_small_letters(path.substr(path.rfind('/') + 1));
  const std::string own = file + function;
  traceback.in_data |= says(in_small_letters(near_end(path)) + function, "frames-of-data") || file == "data.py" ||
                       has_word(own, "merge") || is_in_data_folder(path);
  traceback.in_experts |= says(own, "frames-of-experts");
  traceback.in_rendezvous |= says(frame, "frames-of-rendezvous");
  traceback.in_saving |= says(own, "frames-of-saving");
  traceback.in_client |= says(own, "frames-of-servers");
  traceback.in_launcher |=
      says(path, "frames-of-launchers") || (has_word(path, "multiprocessing/spawn.py") && function == ", in join");
}

// Ray's own exception quotes the frames and the exception of the task that failed.
bool quotes_another(std::string_view type) { return type.find("RayTaskError") != npos; }

}  // namespace

namespace {

// At the end of a traceback, names of exceptions may begin with a small letter: "socket.gaierror: [Errno -2] ...".
std::string_view exception_of_traceback(std::string_view text) {
  if (const std::string_view type = exception_type(text); !type.empty()) return type;
  std::size_t end = 0;
  while (end < text.size() && is_name(text[end])) ++end;
  const std::string_view name = text.substr(0, end);
  const bool has_message = text.substr(end).starts_with(": ") || end == text.size();
  const std::size_t dot = name.rfind('.');
  if (!has_message || dot == npos || dot == 0 || !is_letter(name[0])) return {};
  const std::string_view last = name.substr(dot + 1);
  for (const char* word : {"error", "Error", "timeout", "Exception", "exception"})
    if (last.ends_with(word)) return name;
  return {};
}

}  // namespace

void TracebackAssembler::begin(int writer, const Place& place) {
  if (open_.size() >= kMostOpen && !open_.count(writer)) return;
  open_[writer] = {};
  open_[writer].traceback.begin = place;
}

std::optional<int> TracebackAssembler::adopt(int writer, std::string_view body, std::uint64_t line) {
  constexpr std::uint64_t kLinesBetween = 2;
  if (open_.count(writer) || !trimmed(body).starts_with("File \"")) return std::nullopt;
  for (auto& [owner, open] : open_)
    if (open.traceback.frame_line == 0 && open.traceback.begin.line + kLinesBetween >= line) {
      const int before = owner;
      auto node = open_.extract(owner);
      node.key() = writer;
      open_.insert(std::move(node));
      return before;
    }
  return std::nullopt;
}

TracebackAssembler::Result TracebackAssembler::feed(int writer, std::string_view body, std::uint64_t line) {
  const auto found = open_.find(writer);
  if (found == open_.end()) return {};
  Open& open = found->second;
  if (++open.lines > kMostLines) {
    open_.erase(found);
    return {};
  }
  const int lines_of_others = std::exchange(open.lines_of_others, 0);
  const std::size_t indent = std::min(body.find_first_not_of(" \t"), body.size());
  const std::string_view text = body.substr(indent);
  if (text.starts_with("File \"")) {
    open.indent = indent;
    open.traceback.frame = text.substr(0, kLongestText);
    open.traceback.frame_line = line;
    note_frame(text, open.traceback);
    return {true};
  }
  const bool has_frames = open.traceback.frame_line != 0;  // torchrun's list of failures may quote only the last line
  const bool ends_without = !has_frames && !exception_of_traceback(text).empty();
  if (!ends_without && (text.empty() || (indent > 0 && indent >= open.indent))) {
    // The line of code that a frame shows.
    if (says(in_small_letters(text), "frames-of-experts")) open.traceback.in_experts = true;
    if (has_word(text, "_first(")) open.traceback.waits_for_first_process = true;
    if (text.find_first_not_of(" ^~") != npos)
      open.traceback.checks_finite = has_one_of(text, "isnan|isfinite|isinf|is_finite|all_finite|allfinite");
    return {true};
  }
  const bool in_place = indent < open.indent || open.indent == 0 || ends_without;
  const std::string_view type = in_place ? exception_of_traceback(text) : std::string_view();
  if (!type.empty() && quotes_another(type)) return {true};
  if (type.empty()) {
    open.lines_of_others = lines_of_others + 1;
    return {};
  }
  Traceback ended = std::move(open.traceback);
  ended.exception = text.substr(0, kLongestText);
  ended.exception_line = line;
  open_.erase(found);
  return {true, std::move(ended)};
}

std::map<int, Traceback> TracebackAssembler::unfinished() const {
  std::map<int, Traceback> all;
  for (const auto& [writer, open] : open_)
    if (open.lines_of_others <= kLastWords) all[writer] = open.traceback;
  return all;
}

namespace {

constexpr int kNoRank = -1, kLocalRanks = 1 << 24, kLearned = 1 << 25;
constexpr std::size_t kMostHandling = 4096, kMostLearned = 64, kLongestPrefix = 200;

int writer_of(const LineMarks& marks) {
  if (marks.learned) return *marks.learned;
  return marks.rank ? *marks.rank : marks.local_rank ? kLocalRanks + *marks.local_rank : kNoRank;
}

// The rank that earlier lines with this prefix name, unless several ranks share the prefix.
std::optional<int> rank_told_before(std::string_view pattern, std::string_view recent) {
  std::optional<int> told;
  while (!recent.empty()) {
    const std::string_view line = take_last_line(recent);
    const auto length = match_prefix(pattern, line);
    if (!length) continue;
    if (number_after(line, "num_local_procs").value_or(1) > 1) return std::nullopt;  // DeepSpeed: a node's prefix
    const auto rank = rank_named_in(line.substr(*length));
    if (rank && told && told != rank) return std::nullopt;
    if (rank) told = rank;
  }
  return told;
}

// The line before a traceback may name its rank: "Rank 5 encountered an exception:".
std::optional<int> rank_announced(std::string_view recent) {
  const std::size_t traceback = recent.rfind("Traceback (most");
  if (traceback == npos) return std::nullopt;
  recent = recent.substr(0, recent.substr(0, traceback).rfind('\n') + 1);
  const std::string_view line = take_last_line(recent);
  const bool tells = has_one_of(line, "xception|rror|ailed|nan|NaN") && !exception_type(trimmed(line)).size();
  if (!tells || line.starts_with("[rank") || has_one_of(line, "NCCL|atchdog|exitcode|local_rank|srun: "))
    return std::nullopt;
  Caught caught;
  if (match_front("%k %r ", line, caught)) return caught.rank;
  return rank_named_in(line);
}

// "ValueError                      Traceback (most recent call last)" in IPython: the exception comes again at the end.
bool is_head_of_notebook(std::string_view before) {
  return before.ends_with("  ") && (is_named_error(trimmed(before)) || trimmed(before) == "KeyboardInterrupt");
}

// The exception of this rank before this one, if others wrote little in between.
Finding* exception_before(const Finding& finding, Findings& findings) {
  constexpr std::ptrdiff_t kBetween = 16;
  const auto end = findings.found.rend() - findings.found.rbegin() > kBetween ? findings.found.rbegin() + kBetween
                                                                              : findings.found.rend();
  const auto before = std::find_if(findings.found.rbegin(), end, [&](const Finding& f) {
    return f.traceback && f.rank == finding.rank && f.place.file == finding.place.file;
  });
  return before == end ? nullptr : &*before;
}

bool is_without_message(std::string_view exception) { return exception_type(exception).size() + 2 >= exception.size(); }

// Classifies an exception that has no message, or refers to the lines before it, by those lines: "NaN detected", then
// "AssertionError".
Sign sign_told_before(const Traceback& traceback, std::optional<int> rank, const Findings& findings) {
  constexpr std::uint64_t kLinesBefore = 12;
  const std::string_view exception = traceback.exception;
  const bool is_bare = is_without_message(exception);
  if (is_bare && traceback.checks_finite) return Sign::NanLoss;
  if (!is_bare && !has_one_of(exception, " above|previous error|Exec graph failed")) return Sign::PythonError;
  const auto is_near = [&](const Finding& f) {
    return f.place.file == traceback.begin.file && f.place.line < traceback.begin.line &&
           f.place.line + kLinesBefore >= traceback.begin.line;
  };
  const auto is_own = [&](const Finding& f) { return !f.rank || !rank || f.rank == rank; };
  for (auto f = findings.found.rbegin(); f != findings.found.rend() && is_near(*f); ++f)
    if (role_of(f->sign) == Role::Cause && f->sign < Sign::KilledByShell && !f->traceback && is_own(*f)) return f->sign;
  return Sign::PythonError;
}

// All ranks print that a checkpoint failed on some of them: "CheckpointException ranks:dict_keys([2, 3])".
std::optional<int> rank_elsewhere(std::string_view exception, const LineMarks& marks) {
  const std::string_view rest = behind(exception, "CheckpointException ranks:dict_keys([").value_or("");
  std::string list(rest.substr(0, rest.find(']')));
  std::erase(list, ' ');
  const std::vector<int> ranks = unfold_ranks(list);
  const bool is_own = !marks.rank || std::find(ranks.begin(), ranks.end(), *marks.rank) != ranks.end();
  return ranks.empty() || is_own ? std::nullopt : std::optional(ranks.front());
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
                             has_word(before, "traceback :") ||  // torchrun's list of failures
                             has_word(before, "Exception Group") || is_head_of_notebook(before) ||
                             has_word(before, "\xe2\x94\x80");  // the frame that Rich draws
  if (is_understood && !marks.rank && !marks.local_rank)
    if (const auto rank = rank_announced(line.recent)) ranks_[writer_of(marks)] = *rank;
  if (is_understood || prefix.size() > kLongestPrefix) return tracebacks_.begin(writer_of(marks), place);
  learn(prefix, place, line.recent);
}

void TracebackNotes::learn(std::string_view prefix, const Place& place, std::string_view recent) {
  if (learned_.size() == kMostLearned) learned_.erase(learned_.begin());
  const LineMarks marks = marks_of(prefix);
  auto rank = marks.rank ? marks.rank : rank_inside(prefix);
  if (!rank) rank = rank_named_in(prefix);
  if (Caught caught; !rank && match_inside("GR=%r", prefix, caught)) rank = caught.rank;  // global rank
  if (!rank) rank = rank_numbered_in(prefix);
  const std::string pattern = pattern_of_prefix(prefix);
  if (!rank) rank = rank_told_before(pattern, recent);
  const int writer = learned_.empty() ? kLearned : learned_.back().writer + 1;
  learned_.push_back({pattern, writer, rank});
  if (rank) ranks_[writer] = *rank;
  tracebacks_.begin(writer, place);
}

// If the line has a learned prefix, sets its marks to what was learned.
const TracebackNotes::Learned* TracebackNotes::learned(std::string_view text, LineMarks& marks) const {
  for (const Learned& known : learned_)
    if (const auto length = match_prefix(known.pattern, text)) {
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
  if (message_) continue_message(writer, marks, line, findings);
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
  note_artifacts(line, findings);
  return true;
}

void TracebackNotes::ended(int writer, const Traceback& traceback, LineMarks marks, const SeenLine& line,
                           Findings& findings) {
  const bool while_handling = handling_.erase(writer) > 0;
  const std::string_view type = exception_type(traceback.exception);
  if (ignored_.erase(traceback.begin.line) > 0) return;
  if (has_word(type, "torch.multiprocessing.spawn.Process")) return spawned(marks, traceback.exception, line, findings);
  Sign sign = sign_of_exception(traceback.exception);
  if (sign == Sign::PythonError) sign = sign_told_before(traceback, marks.rank, findings);
  bool is_wrapper = has_word(type, "CalledProcessError") || has_word(type, "CheckpointException");
  auto exit = ProcessEnds().feed(traceback.exception, line.place.line);
  const bool is_of_launcher = traceback.in_launcher && sign == Sign::PythonError, is_of_child = is_of_launcher && exit;
  if (exit) {
    const auto signal = signal_of_code(exit->code);
    is_wrapper = is_wrapper || (sign == Sign::PythonError && signal);
    if (is_wrapper || traceback.in_launcher) note_process_end(std::move(*exit), marks, line, findings);
    if (is_wrapper && signal && cause_of_signal(*signal) != Cause::Unknown) return;
  }
  if (type == "SystemExit" && sign != Sign::NanLoss) return;
  const std::optional<int> elsewhere = std::exchange(failed_elsewhere_, rank_elsewhere(traceback.exception, marks));
  const bool is_of_network = sign == Sign::NetworkTrouble || sign == Sign::ConnectionLost ||
                             (sign == Sign::CollectiveTimeout && has_word(traceback.frame, "jax/")) ||
                             (sign == Sign::StoreTimeout && has_word(traceback.frame, "elastic/"));
  if (traceback.in_rendezvous && is_of_network) sign = Sign::RendezvousFailed;
  if (is_of_child || (traceback.in_launcher && sign == Sign::Stopped)) return;
  if (sign == Sign::StoreTimeout || has_word(traceback.exception, "monitoredBarrier"))
    note_absent(traceback.exception, line, findings);
  marks.body = traceback.exception;
  Finding finding = finding_in(sign, marks, line, findings);
  if (const auto rank = ranks_.find(writer); !finding.rank && rank != ranks_.end()) finding.rank = rank->second;
  if (elsewhere) finding.rank = elsewhere;
  // A process that reports about its child writes its own prefix, or that of its node.
  if (spawned_rank_ && (!finding.rank || writer == spawned_by_)) finding.rank = spawned_rank_, finding.labelled = false;
  if (traceback.begin.own_time) finding.place.time = traceback.begin.time, finding.place.own_time = true;
  if (const auto rank = rank_told_by(sign, traceback.exception); !finding.rank) finding.rank = rank;
  finding.traceback = traceback;
  finding.bare = is_wrapper || is_of_launcher;
  note_context(traceback.exception, findings);
  add(std::move(finding), writer, while_handling, marks.time.has_value(), findings);
}

void TracebackNotes::add(Finding finding, int writer, bool while_handling, bool is_timed, Findings& findings) {
  Finding* const before = exception_before(finding, findings);
  const bool is_quoted = before && is_quoted_from_elsewhere(before->text);
  // "During handling of": the handled exception is the cause, unless only the later one is in the table: programs look
  // things up, and explain in their own words what a time-out of a socket means.
  const bool is_found_out = before && while_handling && before->sign == Sign::PythonError &&
                            finding.sign != Sign::PythonError && role_of(finding.sign) == Role::Cause;
  const bool is_explained =
      before && while_handling && before->sign == Sign::PythonError && is_without_message(before->text);
  if (is_quoted || is_explained) finding.traceback->in_data |= before->traceback->in_data;
  if (is_quoted || is_found_out || is_explained) {
    *before = std::move(finding);
    return;
  }
  finding.traceback->in_data |= has_word(finding.text, "in DataLoader worker process");
  const bool goes_on =
      finding.sign == Sign::PythonError && (finding.text.ends_with(':') || has_word(finding.text, "Py4JJavaError"));
  if (goes_on) message_ = {writer, findings.found.size(), finding.place.line, is_timed};
  findings.add(std::move(finding));
}

// If the first line of a message is empty or announces more, the following lines are part of it.
void TracebackNotes::continue_message(int writer, const LineMarks& marks, const SeenLine& line, Findings& findings) {
  constexpr std::uint64_t kMostLines = 12;
  const bool is_there =
      message_->finding < findings.found.size() && findings.found[message_->finding].place.line == message_->line;
  if (!is_there || line.place.line > message_->line + kMostLines) return message_.reset();
  const std::string_view text = trimmed(marks.body);
  if (writer != message_->writer || text.empty() || is_of_the_scheduler(text)) return;
  Finding& finding = findings.found[message_->finding];
  const bool is_another = (marks.time && !message_->is_timed) || text.starts_with("Traceback (most");
  if (is_another) return message_.reset();
  constexpr std::size_t kLongest = 400;
  finding.text += " " + std::string(text.substr(0, kLongest));
  const Sign sign = sign_of_exception(finding.text);
  if (sign == Sign::PythonError) return;
  finding.sign = sign;
  message_.reset();
}

void TracebackNotes::quoted(std::string_view text, LineMarks marks, const SeenLine& line, Findings& findings) {
  const bool is_joined = text.starts_with(" File");  // some services make one line of all
  const std::string_view between = is_joined ? " " : "\\n";
  std::string_view exception;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(between), text.size());
    std::string_view part = text.substr(0, end);
    part = part.substr(0, part.find("\","));
    const std::string_view type = exception_type(part);
    if (is_joined ? is_named_error(type) : !type.empty()) exception = is_joined ? text : part;
    text.remove_prefix(std::min(end + between.size(), text.size()));
  }
  if (exception.empty()) return;
  marks.body = exception;
  findings.add(finding_in(sign_of_exception(exception), marks, line, findings));
}

void TracebackNotes::spawned(LineMarks marks, std::string_view body, const SeenLine& line, Findings& findings) {
  learned(line.text, marks);
  if (const auto rank = note_spawned_exit(body, line, findings)) spawned_rank_ = rank, spawned_by_ = writer_of(marks);
}

void TracebackNotes::end(Findings& findings) {
  for (const auto& [writer, traceback] : tracebacks_.unfinished())
    if (!traceback.in_launcher) findings.add(unfinished_finding(writer, traceback, findings));
}

}  // namespace braid
