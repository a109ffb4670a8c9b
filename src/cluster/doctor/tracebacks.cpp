#include "cluster/doctor/tracebacks.h"

#include "cluster/doctor/notes.h"

namespace braid {

namespace {

constexpr int kNoRank = -1, kLocalRanks = 1 << 24, kLearned = 1 << 25;  // writers
constexpr std::size_t kMostOpen = 4096, kMostLearned = 64, kLongestText = 2000;
constexpr std::string_view kHead = "Traceback (most";

int writer_of(const LineMarks& marks) {
  if (marks.learned) return *marks.learned;
  return marks.rank ? *marks.rank : marks.local_rank ? kLocalRanks + *marks.local_rank : kNoRank;
}

void note_frame(std::string_view frame, Traceback& traceback) {
  const std::size_t open = frame.find('"'), close = frame.find('"', open + 1), in = frame.rfind(", in ");
  if (close == npos) return;
  const std::string path = in_small_letters(frame.substr(open + 1, close - open - 1));
  const std::string function = in == npos ? "" : in_small_letters(frame.substr(in));
  const auto last_parts = [&](int count) {
    std::size_t at = path.size();
    while (count-- > 0 && at != npos && at > 0) at = path.rfind('/', at - 1);
    return at == npos || at == 0 ? path.substr(path.starts_with('/')) : path.substr(at);
  };
  const std::string file = "/" + path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  for (const Rule& row : rows_of("frames")) {
    const std::string place = row.is("path")      ? path
                              : row.is("folders") ? last_parts(3)
                              : row.is("folder")  ? last_parts(2)
                                                  : file;
    if (has(place + function, row.anchor)) traceback.traits.insert(row.name);
  }
}

// At the end of a traceback, names of exceptions may begin with a small letter: "socket.gaierror: [Errno -2] ...".
std::string_view exception_of_traceback(std::string_view text) {
  if (const std::string_view type = exception_type(text); !type.empty()) return type;
  std::string_view rest = text;
  const std::string_view name = take_while(rest, is_name);
  const std::size_t dot = name.rfind('.');
  if ((!rest.empty() && !rest.starts_with(": ")) || dot == npos || dot == 0 || !is_letter(name[0])) return {};
  for (const char* word : {"error", "Error", "timeout", "Exception", "exception"})
    if (name.substr(dot).ends_with(word)) return name;
  return {};
}

// The rank that earlier lines with this prefix name, unless several ranks share the prefix.
std::optional<int> rank_told_before(std::string_view pattern, std::string_view recent) {
  std::optional<int> told;
  while (!recent.empty()) {
    const std::string_view line = take_last_line(recent);
    const auto length = match_front(pattern, line);
    const auto rank = length ? rank_named_in(line.substr(*length)) : std::nullopt;
    const bool is_of_node = length && number_after(line, "num_local_procs").value_or(1) > 1;  // DeepSpeed
    if (is_of_node || (rank && told && told != rank)) return std::nullopt;
    if (rank) told = rank;
  }
  return told;
}

// The line before a traceback may name its rank: "Rank 5 encountered an exception:".
std::optional<int> rank_announced(std::string_view recent) {
  recent = recent.substr(0, recent.rfind(kHead));
  recent = recent.substr(0, recent.rfind('\n') + 1);  // npos + 1 is 0
  const std::string_view line = take_last_line(recent);
  const bool tells = says(line, "announces") && exception_type(trimmed(line)).empty();
  if (!tells || line.starts_with("[rank") || says(line, "reports-more")) return std::nullopt;
  Caught caught;
  return match_front("%k %r ", line, caught) ? caught.rank : rank_named_in(line);
}

bool is_without_message(std::string_view exception) { return exception_type(exception).size() + 2 >= exception.size(); }

// Classifies an exception that has no message, or refers to the lines before it, by those lines: "NaN detected", then
// "AssertionError".
Sign sign_told_before(const Traceback& traceback, std::optional<int> rank, const Findings& findings) {
  constexpr std::uint64_t kLinesBefore = 12;
  const bool is_bare = is_without_message(traceback.exception);
  if (is_bare && traceback.is("checks-finite")) return Sign::NanLoss;
  if (!is_bare && !has(traceback.exception, " above|previous error|Exec graph failed")) return Sign::PythonError;
  const Place& begin = traceback.begin;
  for (auto f = findings.found.rbegin(); f != findings.found.rend(); ++f) {
    if (f->place.file != begin.file || f->place.line + kLinesBefore < begin.line) break;
    if (f->sign < Sign::KilledByShell && !f->traceback && (!f->rank || !rank || f->rank == rank)) return f->sign;
  }
  return Sign::PythonError;
}

// All ranks print that a checkpoint failed on some of them: "CheckpointException ranks:dict_keys([2, 3])".
std::optional<int> rank_elsewhere(std::string_view exception, const LineMarks& marks) {
  const std::string_view list = behind(exception, "CheckpointException ranks:dict_keys([").value_or("");
  const std::vector<int> ranks = unfold_ranks(list.substr(0, list.find(']')));
  const bool is_own = !marks.rank || std::ranges::find(ranks, *marks.rank) != ranks.end();
  return ranks.empty() || is_own ? std::nullopt : std::optional(ranks.front());
}

}  // namespace

void Tracebacks::open(int writer, const Place& place) {
  const bool is_harmless = not_fatal_ > 0 && place.line <= not_fatal_ + 2;
  if (open_.size() < kMostOpen || open_.contains(writer))
    open_[writer] = {.traceback = {.begin = place}, .is_harmless = is_harmless};
}

// Some loggers write their prefix only before the first line of a message. A frame without a prefix belongs to the
// traceback that has just begun and has no frame yet; that traceback becomes this writer's.
void Tracebacks::adopt(int writer, const Line& line) {
  if (open_.contains(writer) || !trimmed(line.body()).starts_with("File \"")) return;
  const auto begun = std::ranges::find_if(open_, [](auto& entry) { return entry.second.traceback.frame_line == 0; });
  if (begun == open_.end()) return;
  auto node = open_.extract(begun);
  const int before = std::exchange(node.key(), writer);
  open_.insert(std::move(node));
  if (const auto rank = ranks_.find(before); rank != ranks_.end())
    ranks_[writer] = rank->second;
  else if (before >= 0 && before < kLocalRanks)
    ranks_[writer] = before;
}

// Adds a line to the traceback of its writer. An exception ends it: then the traceback is whole.
bool Tracebacks::feed(int writer, const Line& line, std::optional<Open>& whole) {
  constexpr int kMostLines = 3000;
  const auto found = open_.find(writer);
  if (found == open_.end()) return false;
  Open& open = found->second;
  Traceback& traceback = open.traceback;
  if (++open.lines > kMostLines) return open_.erase(found), false;
  const std::string_view body = line.body();
  const std::size_t indent = std::min(body.find_first_not_of(" \t"), body.size());
  const std::string_view text = body.substr(indent);
  if (text.starts_with("File \"")) {
    open.indent = indent;
    traceback.frame = text.substr(0, kLongestText);
    traceback.frame_line = line.place.line;
    note_frame(text, traceback);
    return true;
  }
  if (text.empty() || (indent > 0 && indent >= open.indent)) {                           // the code that a frame shows
    if (text.find_first_not_of(" ^~") != npos) traceback.traits.erase("checks-finite");  // of an earlier line
    for (const Rule& row : rows_of("code"))
      if (has(text, row.anchor)) traceback.traits.insert(row.name);
    return true;
  }
  const std::string_view type = exception_of_traceback(text);
  if (type.empty()) return false;
  if (has(type, "RayTaskError")) return true;  // it quotes the frames and the exception of the task that failed
  traceback.exception = text.substr(0, kLongestText);
  whole = std::move(open);
  open_.erase(found);
  return true;
}

void Tracebacks::begin(const Line& line, const Place& place) {
  constexpr std::size_t kLongestPrefix = 200;
  const LineMarks& marks = line.marks;
  const std::string_view prefix = line.text.substr(0, line.text.find(kHead));
  const std::string_view before = marks.body.substr(0, marks.body.find(kHead));
  if (Line known = line; recognise(known)) return open(writer_of(known.marks), place);
  ranks_.erase(writer_of(marks));
  // IPython prints the exception also at the head: "ValueError                      Traceback (most recent call last)".
  // torchrun's list of failures says "traceback :", and Rich draws a frame.
  const bool is_understood = trimmed(before).empty() || is_named_error(trimmed(before)) || says(before, "heads");
  if (is_understood)
    if (const auto rank = rank_announced(line.recent)) ranks_[writer_of(marks)] = *rank;
  if (is_understood || prefix.size() > kLongestPrefix) return open(writer_of(marks), place);
  learn(prefix, place, line.recent);
}

void Tracebacks::learn(std::string_view prefix, const Place& place, std::string_view recent) {
  if (learned_.size() == kMostLearned) learned_.erase(learned_.begin());
  const std::string pattern = pattern_of_prefix(prefix);
  auto rank = marks_of(prefix).rank;
  if (!rank) rank = rank_named_in(prefix);
  if (!rank) rank = rank_numbered_in(prefix);
  if (!rank) rank = rank_told_before(pattern, recent);
  const int writer = learned_.empty() ? kLearned : learned_.back().writer + 1;
  learned_.push_back({pattern, writer, rank});
  if (rank) ranks_[writer] = *rank;
  open(writer, place);
}

// If the line has a learned prefix, sets its marks to what was learned.
bool Tracebacks::recognise(Line& line) const {
  for (const Learned& known : learned_)
    if (const auto length = match_front(known.pattern, line.text)) {
      line.marks.rank = known.rank;
      line.marks.learned = known.writer;
      line.marks.body = line.text.substr(*length);
      return true;
    }
  return false;
}

void Tracebacks::during_handling(const LineMarks& marks) {
  if (handling_.size() < kMostOpen) handling_.insert(writer_of(marks));
}

bool Tracebacks::take(Line line) {
  recognise(line);
  int writer = writer_of(line.marks);
  adopt(writer, line);
  if (message_) continue_message(writer, line);
  std::optional<Open> whole;
  bool is_taken = feed(writer, line, whole);
  if (!is_taken && line.marks.mentioned)  // the exception of somebody without a prefix names a rank
    is_taken = feed(writer = kNoRank, line, whole);
  if (whole && !whole->is_harmless) ended(writer, whole->traceback, std::move(line));
  if (!is_taken || whole) return is_taken;
  note_context(line.body(), findings_);
  note_artifacts(line, findings_);
  return true;
}

void Tracebacks::ended(int writer, const Traceback& traceback, Line line) {
  const bool while_handling = handling_.erase(writer) > 0;
  const std::string& exception = traceback.exception;
  const std::string_view type = exception_type(exception);
  if (has(type, "torch.multiprocessing.spawn.Process")) return spawned(exception, std::move(line));
  Sign sign = sign_of_exception(exception);
  if (sign == Sign::PythonError) sign = sign_told_before(traceback, line.marks.rank, findings_);
  bool is_wrapper = has(type, "CalledProcessError|CheckpointException");
  const bool is_of_launcher = traceback.is("launcher") && sign == Sign::PythonError;
  if (const auto exit = ProcessEnds().feed(exception)) {
    is_wrapper |= sign == Sign::PythonError && exit->signal();
    if (is_wrapper || is_of_launcher) note_exit(*exit, line, findings_);
    if ((is_wrapper && exit->was_killed()) || is_of_launcher) return;
  }
  if (type == "SystemExit" && sign != Sign::NanLoss) return;
  const auto elsewhere = std::exchange(failed_elsewhere_, rank_elsewhere(exception, line.marks));
  const bool is_of_store = sign == Sign::StoreTimeout && has(traceback.frame, "elastic/");
  if (sign == Sign::CollectiveTimeout || sign == Sign::NetworkTrouble || sign == Sign::ConnectionLost || is_of_store)
    if (traceback.is("rendezvous")) sign = Sign::RendezvousFailed;
  if (sign == Sign::StoreTimeout || has(exception, "monitoredBarrier"))
    note_absent("absent ranks", exception, line, findings_);
  line.marks.body = exception;
  Finding finding = findings_.finding_in(sign, line);
  if (const auto rank = ranks_.find(writer); !finding.rank && rank != ranks_.end()) finding.rank = rank->second;
  if (elsewhere) finding.rank = elsewhere;
  // A process that reports about its child writes its own prefix, or that of its node.
  if (spawned_rank_ && (!finding.rank || writer == spawned_by_)) finding.rank = spawned_rank_, finding.labelled = false;
  if (traceback.begin.own_time) finding.place.time = traceback.begin.time, finding.place.own_time = true;
  if (!finding.rank) finding.rank = rank_told_by(sign, exception);
  finding.traceback = traceback;
  finding.bare = is_wrapper || is_of_launcher;
  note_context(exception, findings_);
  add(std::move(finding), writer, while_handling);
}

void Tracebacks::add(Finding finding, int writer, bool while_handling) {
  constexpr std::ptrdiff_t kBetween = 16;
  // The exception of this rank before this one, if others wrote little in between.
  std::vector<Finding>& found = findings_.found;
  const auto end = found.rbegin() + std::min(std::ssize(found), kBetween);
  const auto before = std::find_if(found.rbegin(), end, [&](const Finding& f) {
    return f.traceback && f.rank == finding.rank && f.place.file == finding.place.file;
  });
  if (before != end) {
    // The exception of another process or thread follows: "Caught ValueError in DataLoader worker process 0."
    const bool is_quoted = says(before->text, "caught-in");
    // "During handling of": the handled exception is the cause, unless only the later one is in the table: programs
    // look things up, and explain in their own words what a time-out of a socket means.
    const bool is_vague = while_handling && before->is(Sign::PythonError);
    const bool is_found_out = is_vague && !finding.is(Sign::PythonError) && finding.role() == Role::Cause;
    const bool is_explained = is_vague && is_without_message(before->text);
    if ((is_quoted || is_explained) && before->raised("data")) finding.traceback->traits.insert("data");
    if (is_quoted || is_found_out || is_explained) {
      *before = std::move(finding);
      return;
    }
  }
  if (has(finding.text, "in DataLoader worker process")) finding.traceback->traits.insert("data");
  const bool goes_on = finding.text.ends_with(':') || has(finding.text, "Py4JJavaError");
  if (finding.is(Sign::PythonError) && goes_on) message_ = {writer, found.size(), finding.place.line};
  findings_.add(std::move(finding));
}

// If the first line of a message is empty or announces more, the following lines are part of it.
void Tracebacks::continue_message(int writer, const Line& line) {
  constexpr std::uint64_t kMostLines = 12;
  constexpr std::size_t kLongest = 400;
  const auto [owner, number, begin] = *message_;
  const std::string_view text = trimmed(line.body());
  std::vector<Finding>& found = findings_.found;
  const bool is_there = number < found.size() && found[number].place.line == begin;
  if (!is_there || line.place.line > begin + kMostLines || text.starts_with(kHead)) return message_.reset();
  if (writer != owner || text.empty()) return;
  found[number].text += " " + std::string(text.substr(0, kLongest));
  found[number].sign = sign_of_exception(found[number].text);
  if (!found[number].is(Sign::PythonError)) message_.reset();
}

void Tracebacks::quoted(std::string_view text, Line line) {
  const bool is_joined = text.starts_with(" File");  // some services make one line of all
  std::string_view exception;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view whole = rest, part = take_until(rest, is_joined ? " " : "\\n");
    const std::string_view quoted = part.substr(0, part.find("\",")), type = exception_type(quoted);
    if (is_joined ? is_named_error(type) : !type.empty()) exception = is_joined ? whole : quoted;
  }
  if (exception.empty()) return;
  line.marks.body = exception;
  findings_.add(findings_.finding_in(sign_of_exception(exception), line));
}

void Tracebacks::spawned(std::string_view body, Line line) {
  recognise(line);
  if (const auto rank = note_spawned_exit(body, line, findings_))
    spawned_rank_ = rank, spawned_by_ = writer_of(line.marks);
}

void Tracebacks::end() {
  for (const auto& [writer, open] : open_) {
    const Traceback& traceback = open.traceback;
    if (traceback.is("launcher")) continue;
    Finding finding;
    finding.sign = Sign::PythonError;
    finding.place = traceback.begin;
    finding.shown = "Traceback (most recent call last):";
    if (traceback.frame_line != 0) {
      finding.place.line = traceback.frame_line;
      finding.shown = traceback.frame;
    }
    finding.text = "an exception whose own line is missing, for the log ends inside its traceback";
    finding.local = writer >= kLocalRanks;
    if (writer != kNoRank && writer < kLearned) finding.rank = finding.local ? writer - kLocalRanks : writer;
    finding.traceback = traceback;
    finding.bare = true;
    findings_.add(std::move(finding));
  }
}

}  // namespace braid
