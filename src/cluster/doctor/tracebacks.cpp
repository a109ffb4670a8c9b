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

// What a frame shows of what the program was doing: its function, and its file with three folders, but not the root,
// which is a disk.
void note_frame(std::string_view frame, Traceback& traceback) {
  constexpr int kParts = 4;
  Caught caught;
  if (!match_front("File \"%1\"%2", frame, caught)) return;
  const auto& [path, function, none] = caught.texts;
  std::size_t begin = path.size();
  for (int part = 0; part < kParts && begin > 0 && begin != npos; ++part) begin = path.rfind('/', begin - 1);
  const std::string_view file = path.substr(begin == npos ? 0 : begin == 0 ? 1 : begin);
  const std::string place = in_small_letters(std::string(file) + std::string(function));
  for (const Rule& row : rows_of("frames"))
    if (has(place, row.anchor) && row.fits(place)) traceback.traits.insert(row.name);
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
Sign sign_told_before(const Finding& head, std::string_view exception, const Findings& findings) {
  constexpr std::uint64_t kLinesBefore = 12;
  const bool is_bare = is_without_message(exception);
  if (is_bare && head.raised("checks-finite")) return Sign::NanLoss;
  if (!is_bare && !has(exception, " above|previous error|Exec graph failed")) return Sign::PythonError;
  for (auto f = findings.found.rbegin(); f != findings.found.rend(); ++f) {
    if (f->place.file != head.place.file || f->place.line + kLinesBefore < head.place.line) break;
    if (f->sign < Sign::KilledByShell && !f->traceback && (!f->rank || !head.rank || f->rank == head.rank))
      return f->sign;
  }
  return Sign::PythonError;
}

// All ranks print that a checkpoint failed on some of them: "CheckpointException ranks:dict_keys([2, 3])".
std::optional<int> rank_elsewhere(std::string_view exception, std::optional<int> own) {
  Caught caught;
  if (!match_inside("CheckpointException ranks:dict_keys([%R]", exception, caught)) return std::nullopt;
  const std::vector<int> ranks = unfold_ranks(caught.ranks);
  const bool is_own = std::ranges::find(ranks, own.value_or(-1)) != ranks.end();
  return ranks.empty() || is_own ? std::nullopt : std::optional(ranks.front());
}

}  // namespace

// Some loggers write their prefix only before the first line of a message. A frame without a prefix belongs to the
// traceback that has just begun and has no frame yet; that traceback becomes this writer's.
void Tracebacks::adopt(int writer, const Line& line) {
  if (open_.contains(writer) || !trimmed(line.body()).starts_with("File \"")) return;
  const auto begun =
      std::ranges::find_if(open_, [](auto& entry) { return entry.second.head.traceback->frame.shown.empty(); });
  if (begun == open_.end()) return;
  auto node = open_.extract(begun);
  node.key() = writer;
  open_.insert(std::move(node));
}

// Adds a line to the traceback of its writer. An exception ends it: then the traceback is whole.
bool Tracebacks::feed(int writer, const Line& line, std::optional<Finding>& whole) {
  constexpr int kMostLines = 3000;
  const auto found = open_.find(writer);
  if (found == open_.end()) return false;
  Open& open = found->second;
  Traceback& traceback = *open.head.traceback;
  if (++open.lines > kMostLines) return open_.erase(found), false;
  const std::string_view body = line.body(), text = trimmed(body);
  const auto indent = static_cast<std::size_t>(text.data() - body.data());
  if (text.starts_with("File \"")) {
    open.indent = indent;
    traceback.frame = {line.place, std::string(text.substr(0, kLongestText))};
    note_frame(text, traceback);
  } else if (text.empty() || (indent > 0 && indent >= open.indent)) {                    // the code that a frame shows
    if (text.find_first_not_of(" ^~") != npos) traceback.traits.erase("checks-finite");  // of an earlier line
    for (const Rule& row : rows_of("code"))
      if (has(text, row.anchor)) traceback.traits.insert(row.name);
  } else if (const std::string_view type = exception_type(text); type.empty()) {
    return false;
  } else if (!has(type, "RayTaskError")) {  // which quotes the frames and the exception of the task that failed
    if (!open.is_harmless) whole = std::move(open.head);
    open_.erase(found);
  }
  return true;
}

void Tracebacks::begin(Line line) {
  constexpr std::size_t kLongestPrefix = 200;
  const std::string_view prefix = line.text.substr(0, line.text.find(kHead));
  const std::string_view before = trimmed(line.body().substr(0, line.body().find(kHead)));
  std::optional<int> announced;
  if (!recognise(line)) {
    // IPython prints the exception also at the head: "ValueError                      Traceback (most recent call
    // last)". torchrun's list of failures says "traceback :", and Rich draws a frame.
    if (before.empty() || is_named_error(before) || says(before, "heads"))
      announced = rank_announced(line.recent);
    else if (prefix.size() <= kLongestPrefix)
      learn(prefix, line.recent), recognise(line);
  }
  const int writer = writer_of(line.marks);
  if (open_.size() == kMostOpen && !open_.contains(writer)) return;
  const bool is_harmless = not_fatal_ > 0 && line.place.line <= not_fatal_ + 2;
  Open& open = open_[writer] = {.head = findings_.finding_in(Sign::PythonError, line), .is_harmless = is_harmless};
  open.head.traceback.emplace();
  if (!open.head.rank) open.head.rank = announced;
}

void Tracebacks::learn(std::string_view prefix, std::string_view recent) {
  if (learned_.size() == kMostLearned) learned_.erase(learned_.begin());
  const std::string pattern = pattern_of_prefix(prefix);
  auto rank = marks_of(prefix).rank;
  if (!rank) rank = rank_named_in(prefix);
  if (Caught caught; !rank && matching_row("numbered prefixes", prefix, caught)) rank = caught.rank;
  if (!rank) rank = rank_told_before(pattern, recent);
  learned_.push_back({pattern, learned_.empty() ? kLearned : learned_.back().writer + 1, rank});
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
  std::optional<Finding> whole;
  if (!feed(writer, line, whole)) {
    if (!line.marks.mentioned) return false;  // the exception of somebody without a prefix may name a rank
    if (!feed(writer = kNoRank, line, whole)) return false;
  }
  note_artifacts(line, findings_);
  if (whole) ended(writer, *whole, std::move(line));
  return true;
}

void Tracebacks::ended(int writer, Finding head, Line line) {
  const bool while_handling = handling_.erase(writer) > 0;
  const std::string exception(trimmed(line.body()).substr(0, kLongestText));
  const std::string_view type = exception_type(exception);
  if (has(type, "torch.multiprocessing.spawn.Process")) return spawned(exception, std::move(line));
  Sign sign = sign_of_exception(exception);
  if (sign == Sign::PythonError) sign = sign_told_before(head, exception, findings_);
  bool is_wrapper = has(type, "CalledProcessError|CheckpointException");
  const bool is_of_launcher = head.raised("launcher") && sign == Sign::PythonError;
  if (const auto exit = ProcessEnds().feed(exception)) {
    is_wrapper |= sign == Sign::PythonError && exit->signal();
    if (is_wrapper || is_of_launcher) note_exit(*exit, line, findings_);
    if ((is_wrapper && exit->was_killed()) || is_of_launcher) return;
  }
  if (type == "SystemExit" && sign != Sign::NanLoss) return;
  const auto elsewhere = std::exchange(failed_elsewhere_, rank_elsewhere(exception, head.rank));
  if (sign == Sign::StoreTimeout || has(exception, "monitoredBarrier"))
    note_absent("absent ranks", exception, line, findings_);
  if (role_of(sign) == Role::Consequence) {
    const bool is_of_store = sign == Sign::StoreTimeout && !has(head.traceback->frame.shown, "elastic/");
    if (head.raised("rendezvous") && !is_of_store) sign = Sign::RendezvousFailed;
  }
  line.marks.body = exception;
  Finding finding = findings_.finding_in(sign, line);
  if (head.rank || elsewhere) finding.rank = elsewhere ? elsewhere : head.rank;
  // A process that reports about its child writes its own prefix, or that of its node.
  if (spawned_rank_ && (!finding.rank || writer == spawned_by_)) finding.rank = spawned_rank_, finding.labelled = false;
  if (head.place.own_time) finding.place.time = head.place.time, finding.place.own_time = true;
  if (!finding.rank) finding.rank = rank_told_by(sign, exception);
  finding.traceback = std::move(head.traceback);
  finding.bare = is_wrapper || is_of_launcher;
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
    const bool is_found_out = !finding.is(Sign::PythonError) && finding.role() == Role::Cause;
    if (is_quoted || (is_vague && (is_found_out || is_without_message(before->text)))) {
      if (before->raised("data")) finding.traceback->traits.insert("data");
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

// "-- Process 1 terminated with the following error:", then its traceback; or "ProcessExitedException: process 1
// terminated with signal SIGKILL". The process is a rank.
void Tracebacks::spawned(std::string_view body, Line line) {
  const auto exit = ProcessEnds().feed(body);
  if (!exit || exit->ranks.empty()) return;
  recognise(line);
  spawned_rank_ = exit->ranks[0], spawned_by_ = writer_of(line.marks);
  note_exit(*exit, line, findings_);
}

void Tracebacks::end() {
  for (auto& [writer, open] : open_) {
    Finding& finding = open.head;
    if (finding.raised("launcher")) continue;
    finding.shown = "Traceback (most recent call last):";
    finding.focus = 0;
    if (const Quote& frame = finding.traceback->frame; !frame.shown.empty())
      finding.shown = frame.shown, finding.place.line = frame.place.line;
    finding.text = "an exception whose own line is missing, for the log ends inside its traceback";
    finding.bare = true;
    findings_.add(std::move(finding));
  }
}

}  // namespace braid
