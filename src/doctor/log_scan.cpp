#include "doctor/log_scan.h"

#include <algorithm>

#include "doctor/anchor_scan.h"
#include "doctor/clean_text.h"
#include "doctor/launcher_lines.h"
#include "doctor/line_kinds.h"
#include "doctor/progress_watch.h"
#include "doctor/run_facts.h"

namespace braid {
namespace {

constexpr int kNoRank = -1, kLocalRanks = 1 << 24;
constexpr std::size_t kMostRanks = 1 << 17, kKeptText = 4000;

// What most lines of most logs look like.
constexpr std::string_view kUsual =
    " [2026-11-15 09:40:29.620204] iteration       10/     100 | consumed samples:           80 | elapsed time per "
    "iteration "
    "(ms): 639.6 | throughput per GPU (TFLOP/s/GPU): 0.0 | tokens per GPU (tokens/s/GPU): 266.8 | learning rate: "
    "2.946396E-03 | global batch size:     8 | lm loss: 5.333568E+00 | seq_load_balancing_loss: 1.015603E+00 | loss "
    "scale: "
    "1.0 | grad norm: 1.248 | number of skipped iterations:   0 | number of nan iterations:   0 | time (ms) | language "
    "| "
    "waits for images:      10.0 ( 2 %) | forward:   283.9 (44 %) | backward:   259.6 (41 %) | pipeline wait:    43.7 "
    "( 7 %) "
    "| reduce:    10.0 ( 2 %) | optimizer: [rank3]: NCCL INFO Channel 12/0 : 1[2] -> 3[4] [send] via NET/IB/5/GDRDMA "
    "Training epoch 0, | reduced_train_loss: | global_step: | validation | loading shard";

std::vector<std::string> anchors_of(const std::vector<Rule>& rules) {
  std::vector<std::string> anchors;
  for (const Rule& rule : rules) anchors.emplace_back(rule.anchor);
  return anchors;
}

}  // namespace

class LogScan::Impl {
 public:
  bool read(const LogFile& file) {
    LineReader reader(file);
    reader_ = &reader;
    if (reader.looks_binary()) return false;
    file_ = static_cast<int>(findings_.files.size());
    file_rank_ = file.rank;
    findings_.files.emplace_back().name = file.name;
    if (file.rank) findings_.ranks[*file.rank].last.file = file_;  // also of a rank that never said a word
    tracebacks_ = {};
    block_ = {};
    said_.reset();
    spawned_rank_.reset();
    last_time_.reset();
    progress_ = {};
    starts_ = 0;
    LineReader::Line line;
    while (reader.next(line)) {
      if (line.whole) note_writer(line);
      line_by_line() ? examine(line) : glance(line);
    }
    FileTrace& trace = findings_.files.back();
    trace.lines = line.number;
    trace.bytes = reader.bytes();
    for (const auto& [writer, traceback] : tracebacks_.unfinished()) end_of_traceback(writer, traceback, {});
    return true;
  }

  Findings take() {
    findings_.settle();
    return std::move(findings_);
  }

 private:
  bool line_by_line() const { return tracebacks_.any_open() || block_.open(); }

  // Who wrote when, for every line: it must stay cheap.
  void note_writer(const LineReader::Line& line) {
    if (line.text.empty()) return;
    const std::string_view head = line.text.substr(0, 120);
    const LineMarks marks = marks_of(head);
    line_before_has_time_ = last_time_own_;
    last_time_own_ = marks.time.has_value();
    if (marks.time) last_time_ = marks.time;
    if (!findings_.program_spoke && !is_of_the_scheduler(trimmed(marks.body)) && !trimmed(marks.body).empty())
      findings_.program_spoke = true;
    const auto rank = marks.rank ? marks.rank : marks.local_rank ? marks.local_rank : file_rank_;
    if (!rank) return;
    if (*rank != traced_rank_ || !trace_) {
      if (findings_.ranks.size() >= kMostRanks && !findings_.ranks.count(*rank)) return;
      trace_ = &findings_.ranks[*rank];
      traced_rank_ = *rank;
    }
    ++trace_->lines;
    trace_->labelled = marks.labelled;
    trace_->last = {.file = file_, .line = line.number, .time = last_time_, .own_time = marks.time.has_value()};
  }

  // Nearly all lines end here. An iteration's line is told from its raw text, unless it says something else, too.
  void glance(const LineReader::Line& line) {
    bool tells_progress = false, tells_more = false;
    scan_.each(line.text, [&](int rule) {
      if (rules_[static_cast<std::size_t>(rule)].sign != Sign::Progress) return tells_more = true, false;
      return tells_progress = true;
    });
    const auto has = [&](char c) { return line.text.find(c) != std::string_view::npos; };
    if (tells_more || (tells_progress && (has('\r') || has('\x1b')))) return examine(line);
    if (!tells_progress) return;
    here_ = {
        file_, line.number, last_time_, last_time_own_, findings_.files.back().progress, findings_.files.back().run};
    progress(line.text);
  }

  bool has_anchor(std::string_view text) const {
    bool found = false;
    scan_.each(text, [&](int) { return found = true, false; });
    return found;
  }

  // A progress bar rewrites its line with carriage returns: each part is a line of its own.
  void examine(const LineReader::Line& line) {
    std::string_view rest = line.text;
    while (!rest.empty()) {
      const std::size_t end = rest.find('\r');
      const std::string_view part = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      if (line_by_line() || has_anchor(part)) examine_part(part, line.number);
    }
    if (line.text.empty() && tracebacks_.any_open()) examine_part("", line.number);
  }

  void examine_part(std::string_view raw, std::uint64_t number) {
    const std::string text = clean_text(raw);
    shown_ = trimmed(text).substr(0, kKeptText);
    LineMarks marks = marks_of(text);
    if (const auto inside = rank_inside(marks.body); inside && (!marks.rank || marks.labelled))
      marks.rank = inside, marks.labelled = false;
    if (!marks.rank && file_rank_) marks.rank = file_rank_;
    const int writer = marks.rank ? *marks.rank : marks.local_rank ? kLocalRanks + *marks.local_rank : kNoRank;
    const FileTrace& file = findings_.files.back();
    here_ = {file_, number, marks.time ? marks.time : last_time_, marks.time.has_value(), file.progress, file.run};
    if (tracebacks_.any_open()) {
      auto fed = tracebacks_.feed(writer, marks.body, number);
      if (fed.ended) return end_of_traceback(writer, *fed.ended, marks);
      if (fed.taken && !has_word(marks.body, "Traceback (most recent call last)"))
        return note_context(marks.body, findings_);
    }
    if (block_.open())
      if (auto exit = block_.feed(marks.body, here_)) by_torchrun(std::move(*exit), marks);
    if (const auto sign = sign_of(marks.body)) act(*sign, marks, writer);
  }

  // The first fitting rule, by the anchors that are there.
  std::optional<Sign> sign_of(std::string_view body) const {
    std::size_t best = rules_.size();
    scan_.each(body, [&](int anchor) {
      const auto rule = static_cast<std::size_t>(anchor);
      if (rule < best && fits(rules_[rule], body)) best = rule;
      return true;
    });
    return best < rules_.size() ? std::optional(rules_[best].sign) : std::nullopt;
  }

  void act(Sign sign, const LineMarks& marks, int writer) {
    const std::string_view body = marks.body;
    switch (sign) {
      case Sign::TracebackStart:
        return tracebacks_.begin(writer, here_.line,
                                 here_.own_time || line_before_has_time_ ? here_.time : std::nullopt);
      case Sign::FailureBlock:
        return block_.begin(body);
      case Sign::WorkerFailed:
        if (auto exit = parse_worker_failed(body)) by_torchrun(std::move(*exit), marks);
        return;
      case Sign::TaskExit:
        if (auto exit = parse_task_exit(body)) return task_exit(std::move(*exit), body);
        return;
      case Sign::BraidRootCause:
        if (auto cause = parse_root_cause(body)) root_cause(std::move(*cause));
        return;
      case Sign::SpawnedProcess:
        return spawned(body);
      case Sign::Progress:
        return progress(body);
      case Sign::BraidSays:
        if (body.starts_with("braid: ")) said_ = finding_at(Sign::BraidError, marks);
        return;
      case Sign::BraidFix:
        if (said_ && here_.line - said_->place.line <= 3) findings_.add(*said_);
        said_.reset();
        return;
      case Sign::EndedWell:
        findings_.files.back().good_end = here_.line;
        return;
      case Sign::JobExit:
        if (const auto code = number_after(body, "exit code")) findings_.exit_code = static_cast<int>(*code & 0xff);
        return;
      case Sign::RunStarts:
        if (++starts_ > 1 || has_word(body, "restart")) ++findings_.files.back().run;
        return note_context(body, findings_);
      case Sign::Remark:
        return remark(marks);
      case Sign::LastEnqueued:
        note_enqueued(marks, findings_);
        return found(Sign::CollectiveTimeout, marks);
      case Sign::MonitoredBarrier:
        note_absent(body, findings_);
        return found(Sign::CollectiveTimeout, marks);
      case Sign::ChainDirect:
      case Sign::ChainDuring:
        chain_[writer] = sign;
        return;
      default:
        if (role_of(sign) == Role::Context) return note_context(body, findings_);
        if (sign == Sign::StoreTimeout) note_absent(body, findings_);
        if (is_noise(sign, body)) return;
        found(sign, marks);
    }
  }

  // A line may name an error without being one.
  static bool is_noise(Sign sign, std::string_view body) {
    if (body.find("frame #") < 4) return true;
    if (sign == Sign::Stopped || role_of(sign) == Role::Outside) return false;
    return is_warning(body.substr(0, 200)) || has_word(body, "etrying") || has_word(body, "will retry");
  }

  void found(Sign sign, const LineMarks& marks) {
    Finding finding = finding_at(sign, marks);
    if (role_of(sign) == Role::Outside)
      if (const auto time = time_inside(marks.body)) finding.place.time = time, finding.place.own_time = true;
    findings_.add(std::move(finding));
  }

  Finding finding_at(Sign sign, const LineMarks& marks) {
    if (sign == Sign::WeightsDiffer && mentions_fp8(reader_->recent())) findings_.fp8 = true;
    Finding finding;
    finding.sign = sign;
    finding.place = here_;
    finding.rank = marks.rank ? marks.rank : marks.local_rank;
    finding.host = host_in(marks.body);
    finding.text = trimmed(marks.body).substr(0, kKeptText);
    finding.shown = shown_;
    finding.local = !marks.rank && marks.local_rank;
    finding.labelled = marks.labelled && finding.rank == marks.rank;
    if (finding.rank && !finding.host.empty()) findings_.hosts.emplace(*finding.rank, finding.host);
    return finding;
  }

  void end_of_traceback(int writer, const Traceback& traceback, const LineMarks& marks) {
    const auto chain = chain_.find(writer);
    const bool while_handling = chain != chain_.end() && chain->second == Sign::ChainDuring;
    if (chain != chain_.end()) chain_.erase(chain);
    const std::string_view type = exception_type(traceback.exception);
    if (traceback.in_launcher && has_word(type, "ChildFailedError")) return;
    if (has_word(type, "torch.multiprocessing.spawn.Process")) return spawned(traceback.exception);
    if (type == "SystemExit" || traceback.exception.empty()) return;
    std::optional<Sign> sign = sign_of(traceback.exception);
    if (!sign || role_of(*sign) == Role::Context || role_of(*sign) == Role::Launcher || *sign == Sign::NativeCrash)
      sign = Sign::PythonError;
    if (*sign == Sign::StoreTimeout || has_word(traceback.exception, "monitoredBarrier"))
      note_absent(traceback.exception, findings_);
    if (has_word(traceback.exception, "failed to pass monitoredBarrier")) sign = Sign::CollectiveTimeout;
    LineMarks whole = marks;
    whole.body = traceback.exception;
    here_.line = traceback.exception_line;
    Finding finding = finding_at(*sign, whole);
    if (writer == kNoRank && file_rank_) finding.rank = file_rank_;
    if (!finding.rank) finding.rank = spawned_rank_;
    if (traceback.time) finding.place.time = traceback.time, finding.place.own_time = true;
    finding.traceback = traceback;
    if (while_handling && replaces_lookup(*sign, finding)) return;
    note_context(traceback.exception, findings_);
    findings_.add(std::move(finding));
  }

  // "During handling of": what was handled is the cause, except for a lookup that failed, which programs do to find
  // out.
  bool replaces_lookup(Sign sign, Finding& finding) {
    if (findings_.found.empty() || sign == Sign::PythonError) return false;
    Finding& before = findings_.found.back();
    if (!before.traceback || before.rank != finding.rank || before.sign != Sign::PythonError) return false;
    const std::string_view type = exception_type(before.text);
    for (const char* lookup : {"KeyError", "AttributeError", "IndexError", "StopIteration", "FileNotFoundError"})
      if (type == lookup) {
        before = std::move(finding);
        return true;
      }
    return false;
  }

  // Every rank prints it; a run that was started again may print another one.
  void root_cause(RootCauseLine line) {
    line.place = here_;
    line.text = shown_;
    if (!line.host.empty()) findings_.hosts[line.rank] = line.host;
    std::vector<RootCauseLine>& all = findings_.braid;
    if (!all.empty() && (all.back().place.run == here_.run && all.back().place.progress + 1 >= here_.progress)) return;
    if (all.size() == 64) all.erase(all.begin());
    all.push_back(std::move(line));
  }

  void by_torchrun(WorkerExit exit, const LineMarks& marks) {
    findings_.torchrun = true;
    findings_.labels_are_nodes = findings_.labels_are_nodes || marks.labelled;
    add(std::move(exit));
  }

  // torch.multiprocessing.spawn: "-- Process 1 terminated with the following error:", then its traceback; or
  // "ProcessExitedException: process 1 terminated with signal SIGKILL".
  void spawned(std::string_view body) {
    const auto rank = number_after(body, "rocess");
    if (!rank || *rank > 1 << 20) return;
    spawned_rank_ = static_cast<int>(*rank);
    const std::size_t signal = body.find("with signal "), code = body.find("with exit code ");
    WorkerExit exit = {.place = {}, .ranks = {*spawned_rank_}, .host = "", .text = std::string(body), .root = true};
    if (signal != std::string_view::npos)
      exit.code = -signal_by_name(body.substr(signal + 12));
    else if (code != std::string_view::npos)
      exit.code = static_cast<int>(number_after(body, "exit code").value_or(1));
    if (exit.code != 0) add(std::move(exit));
  }

  void task_exit(WorkerExit exit, std::string_view body) {
    if (has_word(body, "Out Of Memory")) {
      LineMarks marks;
      marks.body = body;
      if (exit.ranks.size() == 1) marks.rank = exit.ranks[0];
      found(Sign::CgroupOom, marks);
    }
    add(std::move(exit));
  }

  void add(WorkerExit exit) {
    exit.text = shown_;
    const bool has_time = exit.place.own_time;
    const auto time = exit.place.time;
    exit.place = here_;
    if (has_time) exit.place.time = time, exit.place.own_time = true;
    findings_.add(std::move(exit));
  }

  void progress(std::string_view text) {
    if (!progress_.take(text, here_, findings_)) note_context(text, findings_);
  }

  void remark(const LineMarks& marks) {
    const std::string_view text = trimmed(marks.body), type = exception_type(text);
    if (is_warning(text) || has_word(text, "frame #") || is_of_the_scheduler(text)) return;
    if (is_kill_by_shell(text)) {
      Finding finding = finding_at(Sign::HostOom, marks);
      finding.bare = true;
      return findings_.add(std::move(finding));
    }
    const bool is_exception = !type.empty() && (type.ends_with("Error") || type.ends_with("Exception"));
    Finding finding = finding_at(is_exception ? Sign::PythonError : Sign::Remark, marks);
    finding.bare = is_exception;
    if (is_exception && text.size() <= type.size() + 2) return;
    findings_.add(std::move(finding));
  }

  const std::vector<Rule>& rules_ = rules();
  const AnchorScan scan_{anchors_of(rules_), kUsual};
  Findings findings_;
  // Of the file that is being read:
  const LineReader* reader_ = nullptr;
  int file_ = 0;
  std::optional<int> file_rank_;
  TracebackAssembler tracebacks_;
  FailureBlock block_;
  std::map<int, Sign> chain_;
  std::optional<int> spawned_rank_;
  std::optional<LogTime> last_time_;
  bool last_time_own_ = false, line_before_has_time_ = false;  // the line that is read, and the one before
  ProgressWatch progress_;
  int starts_ = 0;
  Place here_;
  std::string_view shown_;       // the line that is examined
  std::optional<Finding> said_;  // by Braid; an error if it says next where, or how to fix it
  RankTrace* trace_ = nullptr;
  int traced_rank_ = -1;
};

LogScan::LogScan() : impl_(std::make_unique<Impl>()) {}
LogScan::~LogScan() = default;
bool LogScan::read(const LogFile& file) { return impl_->read(file); }
Findings LogScan::findings() && { return impl_->take(); }

}  // namespace braid
