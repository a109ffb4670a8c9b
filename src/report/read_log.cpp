// Reads logs, metrics files and recipes of runs.
#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>
#include "base/error.h"
#include "base/strings.h"
#include "cluster/lines/log_source.h"
#include "cluster/lines/text.h"
#include "report/report.h"

namespace braid {
namespace {

// The number that a text begins with: "686.6 (69 %)", "48.9 %".
std::optional<double> leading_number(std::string_view text) {
  text = trimmed(text);
  return parse_double(text.substr(0, text.find_first_of(" %/|")));
}

// The number of iterations or ranks that a text begins with.
std::optional<std::int64_t> leading_count(std::string_view text) {
  text = trimmed(text);
  const auto count = parse_int64(text.substr(0, text.find_first_of(" %/|]")));
  return count && *count >= 0 && *count <= kMostIterations ? count : std::nullopt;
}

// "... | label: value | label: value |": the cells after the first bar.
struct Cell {
  std::string_view label, value;
};
std::vector<Cell> cells_of(std::string_view line) {
  std::vector<Cell> cells;
  for (std::size_t bar = line.find('|'); bar != std::string_view::npos;) {
    const std::size_t next = line.find('|', bar + 1);
    const std::string_view cell = trimmed(line.substr(bar + 1, next - bar - 1));
    const std::size_t colon = cell.rfind(": ");
    if (!cell.empty())
      cells.push_back(colon == std::string_view::npos ? Cell{cell, {}}
                                                      : Cell{cell.substr(0, colon), trimmed(cell.substr(colon + 2))});
    bar = next;
  }
  return cells;
}

// "[2026-11-16 16:01:26.463762]", local time, in seconds since 1970.
std::optional<double> time_of(std::string_view line) {
  const std::size_t begin = line.find('[');
  const std::size_t end = line.find(']', begin == std::string_view::npos ? 0 : begin);
  if (begin == std::string_view::npos || end == std::string_view::npos) return std::nullopt;
  const std::string text(line.substr(begin + 1, end - begin - 1));
  std::tm parts{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%d %H:%M:%S", &parts);
  if (!rest) return std::nullopt;
  parts.tm_isdst = -1;
  const std::time_t seconds = ::mktime(&parts);
  if (seconds < 0) return std::nullopt;
  return static_cast<double>(seconds) + parse_double(*rest == '.' ? "0" + std::string(rest) : "0").value_or(0);
}

// The bytes of a text like "6.96 MiB"; 0 if the text has another form.
double bytes_of(std::string_view text) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  const std::size_t blank = text.find(' ');
  const auto number = parse_double(text.substr(0, blank));
  if (!number || blank == std::string_view::npos) return 0;
  const auto unit = std::find(std::begin(kUnits), std::end(kUnits), trimmed(text.substr(blank)));
  if (unit == std::end(kUnits)) return 0;
  return *number * std::exp2(10.0 * static_cast<double>(unit - std::begin(kUnits)));
}

// "sample 7 of shard 'a.tar' is skipped: truncated (3 skipped)": which one; several ranks may read the same.
std::string_view damaged_sample(std::string_view line) {
  const std::size_t begin = line.find("sample "), end = line.find(" is skipped: ");
  const bool told = begin < end && end != std::string_view::npos && line.ends_with(" skipped)");
  return told ? line.substr(begin, end - begin) : std::string_view();
}

constexpr std::pair<const char*, const char*> kSummaryCounts[] = {{"damaged samples  ", "damaged"},
                                                                  {"too long samples  ", "too_long"},
                                                                  {"cut samples  ", "cut"},
                                                                  {"without targets  ", "without_targets"}};

// The names of a curve: on the page, and in the log, event files and metrics files. Curves whose names begin with "GPU"
// or "host" are kinds of memory. "loss" is what the parity tests of Megatron's fork call it.
struct Name {
  const char *curve, *in_log, *in_events = "", *in_metrics = "";
};
constexpr Name kNames[] = {
    {"lm_loss", "lm loss", "lm loss", "lm_loss"},
    {"lm_loss", "", "", "loss"},
    {"validation_loss", "lm loss value", "lm loss validation"},
    {"validation_perplexity", "lm loss PPL", "lm loss validation ppl"},
    {"right_tokens", "right tokens", "right tokens validation"},
    {"right_answers", "right answers", "right answers validation"},
    {"learning_rate", "learning rate", "learning-rate", "learning_rate"},
    {"grad_norm", "grad norm", "grad-norm", "grad_norm"},
    {"loss_scale", "loss scale", "loss-scale", "loss_scale"},
    {"load_balancing_loss", "seq_load_balancing_loss", "seq_load_balancing_loss", "seq_load_balancing_loss"},
    {"load_balancing_loss", "load_balancing_loss", "load_balancing_loss"},
    {"iteration_ms", "elapsed time per iteration (ms)", "iteration-time-ms", "iteration_ms"},
    {"tflops_per_gpu", "throughput per GPU (TFLOP/s/GPU)", "throughput"},
    {"tflops_per_gpu", "throughput per rank (TFLOP/s/rank)"},
    {"tokens_per_gpu", "tokens per GPU (tokens/s/GPU)", "tokens-per-second-per-gpu"},
    {"tokens_per_gpu", "tokens per rank (tokens/s/rank)", "tokens-per-second-per-rank"},
    {"tokens_per_s", "", "", "tokens_per_s"},
    {"consumed_samples", "consumed samples", "", "consumed_samples"},
    {"global_batch", "global batch size", "batch-size"},
    {"time", "", "", "time"},
    {"GPU, tensors", "allocated", "mem/cuda-allocated-mb"},
    {"GPU, most by tensors", "max allocated", "mem/cuda-peak-mb"},
    {"GPU, most reserved", "max reserved"},
    {"host", "host", "mem/host-rss-mb"},
    {"host, most", "max host", "mem/host-peak-mb"}};

const char* find_name(const char* Name::*in_files, std::string_view name) {
  const auto found = std::ranges::find_if(kNames, [&](const Name& each) { return each.*in_files == name; });
  return found == std::end(kNames) || name.empty() ? nullptr : found->curve;
}

// Adds a value to the curve of this name in one kind of files, if there is one. Returns the curve's name.
const char* add_named(RunRecord& run, const char* Name::*in_files, std::string_view name, std::int64_t iteration,
                      std::optional<double> value) {
  const char* curve = find_name(in_files, name);
  if (!curve) return nullptr;
  const bool is_memory = std::string_view(curve).starts_with("GPU") || std::string_view(curve).starts_with("host");
  add(is_memory ? run.memory_mb : run.curves, curve, iteration, value);
  return curve;
}

// The same, but values under other names are kept as well. `means`: losses are those of the iterations since the last
// point.
void add_figure(RunRecord& run, const char* Name::*in_files, std::string_view name, std::int64_t iteration,
                std::optional<double> value, CurveForm form, bool means) {
  if (!value) return;
  const char* known = add_named(run, in_files, name, iteration, value);
  std::string curve(known ? known : name);
  if (!known) {
    std::ranges::replace_if(
        curve, [](char c) { return c == ' ' || c == '-'; }, '_');
    run.others[curve][iteration] = *value;
  }
  if (!std::isfinite(*value)) return;  // its digits are unknown
  form.is_mean = means && curve.ends_with("loss") && curve != "validation_loss";
  run.forms.try_emplace(curve, form);
}

// Of a number in a log: "2.714997E-01", "0.891".
CurveForm form_of(std::string_view number) {
  using enum CurveForm::Digits;
  number = number.substr(0, number.find_first_of(" %/|"));
  const std::size_t point = number.find('.'), end = std::min(number.find_first_of("eE"), number.size());
  return {.digits = end < number.size() ? AfterFirst : AfterPoint,
          .count = point < end ? static_cast<int>(end - point - 1) : 0};
}

class LogParser {
 public:
  void take(std::string_view line) {
    if (take_iteration(line) || take_module(line) || take_memory(line) || take_evaluation(line) || take_saved(line))
      return;
    take_start_or_end(line);
  }

  std::vector<RunRecord> finish() {
    end_start();
    return std::move(starts_);
  }

 private:
  void end_start() {
    if (!damaged_.empty()) contents_.unusable.try_emplace("damaged", std::ssize(damaged_));
    if (contents_.since == 0 && !contents_.attempts.empty())
      contents_.since = contents_.attempts.front().began.value_or(0);
    // Starts keep the order that they have in the log, also if their times are unknown.
    const double before = starts_.empty() ? 0 : starts_.back().since;
    if (!starts_.empty() && contents_.since <= before)
      contents_.since = std::nextafter(before, std::numeric_limits<double>::max());
    starts_.push_back(std::move(contents_));
  }

  void begin_start(std::optional<double> time = {}) {
    end_start();
    contents_ = {.since = time.value_or(0)};
    damaged_.clear();
    at_ = 0;
    resumed_after_.reset();
  }

  // A line that a run prints once, before its first iteration.
  void take_resumed(std::optional<std::int64_t> after) {
    if (!contents_.attempts.empty()) begin_start();
    resumed_after_ = after;
  }

  bool take_iteration(std::string_view line) {
    if (line.find("| consumed samples:") == std::string_view::npos) return false;
    const auto rest = behind(line, " iteration ");
    if (!rest) return false;
    const std::string_view numbers = rest->substr(0, rest->find('|'));
    const std::size_t slash = numbers.find('/');
    const auto iteration = leading_count(numbers);
    if (!iteration) return false;
    add_attempt(*iteration, time_of(line));
    if (slash != std::string_view::npos) contents_.iterations = leading_count(numbers.substr(slash + 1));
    ++contents_.lines;
    for (const Cell& cell : cells_of(line)) add_value(cell);
    return true;
  }

  void add_attempt(std::int64_t iteration, std::optional<double> time) {
    if (iteration <= at_) begin_start();
    add(contents_.curves, "time", iteration, time);
    // The line is that of an interval's end. Without a line on where the run continues, it is the first that is known.
    if (contents_.attempts.empty())
      contents_.attempts.push_back({.first = std::min(resumed_after_.value_or(iteration - 1) + 1, iteration),
                                    .first_is_known = resumed_after_.has_value()});
    contents_.end.text.clear();
    contents_.attempts.back().last = iteration;
    contents_.attempts.back().ended = time;
    if (!contents_.attempts.back().began) contents_.attempts.back().began = time;
    at_ = iteration;
  }

  void add_value(const Cell& cell) {
    add_figure(contents_, &Name::in_log, cell.label, at_, leading_number(cell.value), form_of(cell.value), true);
    if (cell.label == "number of skipped iterations") contents_.skipped_count += leading_count(cell.value).value_or(0);
    if (cell.label == "number of nan iterations") contents_.nan_count += leading_count(cell.value).value_or(0);
  }

  // "time (ms) | images | bridge wait (language): 686.6 (69 %) | ...": the module that is waited for is left out.
  // "comm (ms) | images | bridge: 694.9/ 2519.4 (hidden 72 %) | tp: - | ...": exposed, and in flight.
  bool take_module(std::string_view line) {
    const bool is_time = line.find("time (ms) | ") != std::string_view::npos;
    if (!is_time && line.find("comm (ms) | ") == std::string_view::npos) return false;
    const std::vector<Cell> cells = cells_of(line);
    if (cells.size() < 2 || !cells[0].value.empty()) return false;
    MeasuredModule& module = contents_.modules[std::string(cells[0].label)];
    for (auto cell = cells.begin() + 1; cell != cells.end(); ++cell) {
      const std::string name(cell->label.substr(0, cell->label.find(" (")));
      const auto number = leading_number(cell->value);
      if (!number) continue;
      if (is_time) {
        add(module.phase_ms, name, at_, number);
      } else if (const std::size_t slash = cell->value.find('/'); slash != std::string_view::npos) {
        add(module.exposed_ms, name, at_, number);
        add(module.in_flight_ms, name, at_, leading_number(cell->value.substr(slash + 1)));
      }
    }
    return true;
  }

  // "[maximum over 6 ranks] (after 5 iterations) memory (MB) | host: 160.07 | max host: 161.21"
  bool take_memory(std::string_view line) {
    if (line.find("memory (MB) |") == std::string_view::npos) return false;
    if (const auto rest = behind(line, "[maximum over "))
      if (const auto ranks = leading_count(*rest)) contents_.ranks = ranks;
    for (const Cell& cell : cells_of(line))
      add_named(contents_, &Name::in_log, cell.label, at_, leading_number(cell.value));
    return true;
  }

  bool take_evaluation(std::string_view line) {
    const auto rest = behind(line, "validation loss at iteration ");
    if (!rest) return false;
    const auto iteration = leading_count(*rest);
    if (!iteration) return false;
    for (const Cell& cell : cells_of(line)) {
      const auto number = leading_number(cell.value);
      const bool is_percent = cell.label.starts_with("right ");
      add_named(contents_, &Name::in_log, cell.label, *iteration,
                number && is_percent ? std::optional(*number / 100) : number);
    }
    return true;
  }

  // "saved iteration 20 to ckpt: 6.96 MiB in 0.5 s (15.15 MiB/s)"
  bool take_saved(std::string_view line) {
    const auto rest = behind(line, "saved iteration ");
    if (!rest) return false;
    const auto iteration = leading_count(*rest);
    const std::size_t in = rest->rfind(" in "), colon = rest->rfind(": ", in);
    if (!iteration || in == std::string_view::npos || colon == std::string_view::npos) return false;
    contents_.checkpoints.push_back({.iteration = *iteration,
                                     .bytes = bytes_of(trimmed(rest->substr(colon + 2, in - colon - 2))),
                                     .seconds = leading_number(rest->substr(in + 4))});
    return true;
  }

  void take_start_or_end(std::string_view line) {
    if (const auto text = behind(line, "run ended  ")) {
      contents_.end.text = trimmed(*text);
    } else if (const auto failure = behind(line, "braid: root cause: ")) {
      // Every rank prints it.
      if (std::find(contents_.failures.begin(), contents_.failures.end(), *failure) == contents_.failures.end())
        contents_.failures.emplace_back(*failure);
    } else if (const auto resumed = behind(line, "the run continues after iteration ")) {
      take_resumed(leading_count(*resumed));
    } else if (const auto of_fork = behind(line, "resuming hetero training at iteration ")) {
      take_resumed(leading_count(*of_fork));
    } else if (line.find("initialized the weights of ") != std::string_view::npos) {
      take_resumed(0);
    } else if (line.starts_with("braid: restart, ranks: ")) {  // a log of --log-dir
      begin_start(time_of(line));
    } else if (line.find(" ranks: ") != std::string_view::npos && line.find(" on 0-") != std::string_view::npos) {
      if (const auto layout = behind(line, " ranks: ")) contents_.layout = trimmed(*layout);
    } else if (const auto sample = damaged_sample(line); !sample.empty()) {
      damaged_.insert(std::string(sample));
    } else {
      for (const auto& [words, kind] : kSummaryCounts)
        if (const auto number = behind(line, words))
          if (const auto count = leading_count(*number)) contents_.unusable[kind] = *count;
    }
  }

  std::vector<RunRecord> starts_{};  // that have ended
  RunRecord contents_{};
  std::int64_t at_ = 0;  // iteration of the last line
  std::optional<std::int64_t> resumed_after_{};
  std::set<std::string> damaged_{};
};

std::int64_t lines_of(const std::vector<RunRecord>& log) { return sum_of<std::int64_t>(log, &RunRecord::lines); }

bool is_same_start(const RunRecord& a, const RunRecord& b) {
  if (a.attempts.empty() || b.attempts.empty()) return false;
  return a.attempts[0].first == b.attempts[0].first && a.attempts[0].began == b.attempts[0].began;
}

// Replaces what the later start has run again: a point of a log stands for all iterations since the point before it.
void add_later(Curves& curves, Curves&& later, const std::vector<Attempt>& run_again) {
  for (const Attempt& again : run_again)
    for (auto& [name, curve] : curves) curve.erase(curve.lower_bound(again.first), curve.upper_bound(again.last));
  for (auto& [name, points] : later) {
    points.merge(curves[name]);
    curves[name] = std::move(points);
  }
  std::erase_if(curves, [](const auto& curve) { return curve.second.empty(); });
}

template <class Value>
void take_if_known(Value& value, Value&& later) {
  if (later != Value{}) value = std::move(later);
}

// Megatron's fork counts consumed samples from 0 in each start. A count that is not above that of an earlier iteration
// did so, and one of a log's first start that is as long as this start alone.
void count_samples_on(const RunRecord& run, RunRecord& start) {
  const auto own = start.curves.find("consumed_samples"), batch = start.curves.find("global_batch");
  if (own == start.curves.end() || batch == start.curves.end() || start.attempts.empty()) return;
  const auto [first, count] = *own->second.begin();
  const double size = batch->second.begin()->second;
  std::int64_t before = 0;  // the last iteration of earlier starts that is not run again, and its samples
  double done = 0;
  if (const auto found = run.curves.find("consumed_samples"); found != run.curves.end())
    if (const auto next = found->second.lower_bound(std::min(first, start.attempts[0].first));
        next != found->second.begin())
      std::tie(before, done) = *std::prev(next);
  const Attempt& attempt = start.attempts[0];
  const bool counts_itself = attempt.first_is_known && attempt.first > 1 &&
                             std::abs(count - size * static_cast<double>(first - attempt.first + 1)) <= size;
  if (before > 0 ? count > done : !counts_itself) return;
  const double missing = done + size * static_cast<double>(first - before) - count;
  if (missing <= 0) return;
  for (auto& [iteration, samples] : own->second) samples += missing;
  start.warnings.push_back(
      fmt::format("consumed samples begin at 0 again before iteration {}; they are counted on from there", first));
}

void add_start(RunRecord& run, RunRecord&& start) {
  count_samples_on(run, start);
  std::ranges::move(start.warnings, std::back_inserter(run.warnings));
  add_later(run.others, std::move(start.others), start.attempts);
  run.forms.merge(start.forms);
  add_later(run.curves, std::move(start.curves), start.attempts);
  add_later(run.memory_mb, std::move(start.memory_mb), start.attempts);
  for (auto& [module, times] : start.modules) {
    MeasuredModule& all = run.modules[module];
    add_later(all.phase_ms, std::move(times.phase_ms), start.attempts);
    add_later(all.in_flight_ms, std::move(times.in_flight_ms), start.attempts);
    add_later(all.exposed_ms, std::move(times.exposed_ms), start.attempts);
  }
  std::ranges::move(start.attempts, std::back_inserter(run.attempts));
  std::ranges::move(start.checkpoints, std::back_inserter(run.checkpoints));
  for (std::string& failure : start.failures)
    if (std::ranges::find(run.failures, failure) == run.failures.end()) run.failures.push_back(std::move(failure));
  take_if_known(run.iterations, std::move(start.iterations));
  take_if_known(run.ranks, std::move(start.ranks));
  for (const auto& [kind, count] : start.unusable) run.unusable[kind] = count;
  take_if_known(run.layout, std::move(start.layout));
  run.skipped_count += start.skipped_count;
  run.nan_count += start.nan_count;
  run.lines += start.lines;
  // Logs of other ranks have the same start, without its end.
  if (start.since > run.since || !start.end.text.empty()) run.end.text = std::move(start.end.text);
  run.since = start.since;
}

using nlohmann::json;

// Nothing if the line is not that of an iteration.
std::optional<std::int64_t> iteration_of_line(const json& line) {
  const auto number = line.is_object() ? number_of(line, "iteration") : std::nullopt;
  return number && *number >= 0 && *number <= kMostIterations ? std::optional(static_cast<std::int64_t>(*number))
                                                              : std::nullopt;
}

void flatten(const YAML::Node& node, const std::string& key, std::map<std::string, std::string>& settings) {
  if (node.IsMap()) {
    for (const auto& entry : node)
      flatten(entry.second, key.empty() ? entry.first.as<std::string>() : key + "." + entry.first.as<std::string>(),
              settings);
  } else if (node.IsSequence()) {
    YAML::Emitter text;
    text << YAML::Flow << node;
    settings[key] = text.c_str();
  } else if (node.IsScalar()) {
    settings[key] = node.Scalar();
  }
}

std::int64_t number_of(const std::map<std::string, std::string>& settings, const std::string& key) {
  return parse_int64(value_in(settings, key).value_or("")).value_or(1);
}

}  // namespace

std::vector<RunRecord> parse_starts(const std::string& text) {
  LogParser parser;
  for (const std::string& line : split(text, '\n')) parser.take(line);
  return parser.finish();
}

std::vector<RunRecord> read_starts(const std::string& path) {
  LineReader reader({.path = path, .name = path});
  LogParser parser;
  LineReader::Line line;
  while (reader.next(line))
    if (!reader.looks_binary()) parser.take(line.text);
  return parser.finish();
}

std::vector<RunRecord> starts_of_all(std::vector<std::vector<RunRecord>> logs) {
  std::ranges::stable_sort(logs, std::ranges::greater(), lines_of);
  std::vector<RunRecord> all;
  for (std::vector<RunRecord>& log : logs) {
    std::erase_if(log, [&](const RunRecord& start) {
      return std::ranges::any_of(all, [&](const RunRecord& known) { return is_same_start(start, known); });
    });
    std::ranges::move(log, std::back_inserter(all));
  }
  std::ranges::stable_sort(all, {}, &RunRecord::since);
  return all;
}

RunRecord merged(std::vector<RunRecord> starts) {
  RunRecord run;
  for (RunRecord& start : starts) add_start(run, std::move(start));
  return run;
}

RunRecord parse_metrics(const std::string& text) {
  RunRecord contents;
  std::set<std::int64_t> skipped, nans;
  std::optional<double> started_before;
  std::istringstream lines(text);
  for (std::string text_line; std::getline(lines, text_line);) {
    if (text_line.empty()) continue;
    const json line = json::parse(text_line, nullptr, /*allow_exceptions=*/false);
    const auto iteration = iteration_of_line(line);
    if (!iteration) {
      ++contents.bad_lines;
      continue;
    }
    ++contents.lines;
    const std::int64_t at = *iteration;
    for (const auto& [key, value] : line.items())
      if (value.is_number() && key != "iteration" && key != "started")
        add_figure(contents, &Name::in_metrics, key, at, value.get<double>(), {}, /*means=*/false);
    const bool is_skipped = line.value("skipped", json(false)) == true;
    // JSON has no NaN. An iteration whose loss is not finite is skipped; one that had nothing to predict has no loss.
    const bool is_nan = is_skipped && line.contains("lm_loss") && line.at("lm_loss").is_null();
    if (is_nan) contents.curves["lm_loss"][at] = std::numeric_limits<double>::quiet_NaN();
    for (const auto& [set, holds] : {std::pair(&skipped, is_skipped), {&nans, is_nan}})
      holds ? void(set->insert(at)) : void(set->erase(at));
    // Every process has its own time of start; files without it tell a restart only by iterations that are run again.
    const auto started = number_of(line, "started");
    if (contents.attempts.empty() || at <= contents.attempts.back().last || started != started_before)
      contents.attempts.push_back({.first = at, .began = started});
    started_before = started;
    contents.attempts.back().last = at;
    contents.attempts.back().ended = number_of(line, "time");
  }
  contents.skipped.assign(skipped.begin(), skipped.end());
  contents.skipped_count = std::ssize(skipped);
  contents.nan_count = std::ssize(nans);
  return contents;
}

RunRecord read_metrics(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw DataError(fmt::format("cannot read {}", in_quotes(path)));
  return parse_metrics(text);
}

RunRecord record_of(const std::vector<ScalarEvent>& events) {
  static const std::map<std::string, Curves MeasuredModule::*> times = {
      {"time-ms", &MeasuredModule::phase_ms},
      {"comm-ms", &MeasuredModule::in_flight_ms},
      {"comm-exposed-ms", &MeasuredModule::exposed_ms}};
  const bool is_of_megatron =
      std::ranges::any_of(events, [](const ScalarEvent& event) { return event.tag == "iteration-time"; });
  RunRecord run;
  for (const auto& [tag, step, wall_time, value] : events) {
    if (tag.ends_with(" vs samples")) continue;
    if (tag.find('/') != std::string::npos)
      add_named(run, &Name::in_events, tag, step, value);
    else
      add_figure(run, &Name::in_events, tag, step, value, {CurveForm::Digits::Float32}, !is_of_megatron);
    if (tag == "lm loss") add(run.curves, "time", step, wall_time);
    if (tag == "iteration-time") add(run.curves, "iteration_ms", step, 1e3 * value);  // Megatron's, in seconds
    const std::vector<std::string> parts = split(tag, '/');                           // time-ms/images/forward
    if (const auto time = times.find(parts[0]); time != times.end() && parts.size() == 3)
      add(run.modules[parts[1]].*time->second, parts[2], step, value);
  }
  return run;
}

std::optional<std::map<std::string, std::string>> read_settings(const std::string& path) {
  try {
    std::map<std::string, std::string> settings;
    flatten(YAML::LoadFile(path), "", settings);
    return settings;
  } catch (const YAML::Exception&) {
    return std::nullopt;
  }
}

std::optional<std::int64_t> ranks_of(const std::map<std::string, std::string>& settings) {
  if (const auto world = value_in(settings, "topology.world_size")) return parse_int64(*world);
  const bool share = value_in(settings, "topology.colocated") == "true";
  std::int64_t ranks = 0;
  for (const auto& [key, value] : settings) {
    if (!key.starts_with("topology.modules.") || !key.ends_with(".kind")) continue;
    const std::string module = key.substr(0, key.size() - std::string_view("kind").size());
    std::int64_t own = 1;
    for (const char* size : {"tp", "cp", "dp", "pp"}) own *= number_of(settings, module + size);
    ranks = share ? std::max(ranks, own) : ranks + own;
  }
  return ranks > 0 ? std::optional(ranks) : std::nullopt;
}

}  // namespace braid
