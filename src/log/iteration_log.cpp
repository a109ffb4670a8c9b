#include "log/iteration_log.h"
#include <fmt/chrono.h>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "base/strings.h"
#include "plan/topology.h"

namespace braid {
namespace {

// The columns for waiting are the first ones, because they matter most to the reader.
constexpr std::array<Phase, kPhases> kColumns = {Phase::BridgeWait, Phase::DataWait,     Phase::Forward,
                                                 Phase::Backward,   Phase::PipelineWait, Phase::Reduce,
                                                 Phase::Optimizer,  Phase::Other};

std::string names_of(const std::vector<Module>& modules, bool encoders_only, const char* separator) {
  std::vector<std::string> names;
  for (const Module& module : modules)
    if (module.is_encoder || !encoders_only) names.push_back(module.name);
  return fmt::format("{}", fmt::join(names, separator));
}

std::string label_of(const ModulePhases& row, Phase phase) {
  return phase == Phase::BridgeWait && !row.waits_for.empty() ? fmt::format("{} ({})", name_of(phase), row.waits_for)
                                                              : name_of(phase);
}

// Python prints NaN without a sign, and tools expect that.
double plain(double value) { return std::isnan(value) ? std::abs(value) : value; }

std::string loss_text(const std::optional<double>& loss) { return loss ? fmt::format("{:.4f}", *loss) : "none"; }

std::string rate_text(double per_second, int ranks, const char* unit) {
  return fmt::format("{} {} ({} per rank)", plain_number(per_second), unit, plain_number(per_second / ranks));
}

// One row per phase, because with one column per phase the table would be wider than most terminals.
std::string phase_table(const std::vector<ModulePhases>& phases) {
  std::vector<std::string> header = {"share of time"};
  for (const ModulePhases& module : phases) header.push_back(module.module);
  Rows rows;
  for (std::size_t i = 0; i < kPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    if (std::ranges::all_of(phases, [&](const ModulePhases& m) { return m.mean.ms(phase) == 0; })) continue;
    std::vector<std::string>& row = rows.emplace_back(1, name_of(phase));
    for (const ModulePhases& module : phases) row.push_back(fmt::format("{:.0f} %", 100 * module.mean.share(phase)));
  }
  return format_table(header, rows);
}

// One row per module and kind, with means per iteration and rank.
std::string comm_table(const std::vector<ModulePhases>& phases, double iterations) {
  Rows rows;
  for (const ModulePhases& module : phases)
    for (std::size_t i = 0; i < kCommKinds; ++i) {
      const CommTotals& totals = module.communication[i];
      if (totals.in_flight_ms == 0) continue;
      rows.push_back(
          {module.module, name_of(static_cast<CommKind>(i)), fmt::format("{:.2f}", 1e-6 * totals.bytes / iterations),
           plain_number(1e-6 * totals.bytes / totals.in_flight_ms, 3),
           fmt::format("{:.1f}", totals.in_flight_ms / iterations),
           fmt::format("{:.1f}", totals.exposed_ms / iterations), fmt::format("{:.0f} %", 100 * totals.hidden())});
    }
  if (rows.empty()) return "";
  return "\n" + format_table({"communication", "", "MB", "GB/s", "ms", "exposed", "hidden"}, rows);
}

// nlohmann's dump() already writes a number that is not finite as null.
template <class Number>
nlohmann::ordered_json or_null(const std::optional<Number>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

}  // namespace

const char* name_of(CommKind kind) {
  static constexpr std::array<const char*, kCommKinds> names = {"bridge", "pipeline", "gradients", "parameters", "tp",
                                                                "cp",     "ep",       "batches",   "other"};
  return names[static_cast<std::size_t>(kind)];
}

CommKind kind_of(const CommKey& key) {
  if (key.purpose == kForEvaluation) return CommKind::Other;
  const std::string over = key.group.substr(key.group.find('.') + 1);  // "language.dp-cp" -> "dp-cp"
  if (over.starts_with("embedding")) return CommKind::Bridge;          // channels, see plan/channels.h
  if (over.starts_with("activation")) return CommKind::Pipeline;
  if (over == "dp-cp" || over == "expt_dp") return key.op == "all_gather" ? CommKind::Parameters : CommKind::Gradients;
  static const std::map<std::string, CommKind> kinds = {{"tp", CommKind::Tensor},
                                                        {"cp", CommKind::Context},
                                                        {"ep", CommKind::Expert},
                                                        {"expt_tp", CommKind::Expert},
                                                        {"pp-cp-tp", CommKind::Batches}};
  return value_in(kinds, over).value_or(CommKind::Other);
}

CommReport report_of(const CommLedger& ledger, int iterations) {
  std::array<CommUse, kCommKinds> uses;
  for (const auto& [key, use] : ledger) uses[static_cast<std::size_t>(kind_of(key))] += use;
  CommReport report;
  for (std::size_t i = 0; i < kCommKinds; ++i)
    report[i] = {uses[i].bytes / iterations, uses[i].in_flight.ms() / iterations, uses[i].exposed.ms() / iterations};
  return report;
}

PhaseTable::PhaseTable(const Topology& topology) {
  const std::vector<Module>& modules = topology.modules();
  if (topology.colocated()) {
    rows_.push_back({names_of(modules, false, " + "), "", 0, topology.world_size()});
    return;
  }
  for (const Module& module : modules) {
    const std::string waits_for = module.is_encoder ? topology.language().name : names_of(modules, true, " and ");
    rows_.push_back({module.name, waits_for, module.dense.rank_offset(), module.dense.size()});
  }
}

std::vector<double> PhaseTable::to_values(int global_rank, const PhaseReport& report,
                                          const CommReport& communication) const {
  std::vector<double> values;
  for (const Row& row : rows_) {
    const bool mine = global_rank >= row.first_rank && global_rank < row.first_rank + row.ranks;
    const auto add = [&](double value) { values.push_back(mine ? value : 0); };
    for (const double ms : report.phase_ms) add(ms);
    for (const CommTotals& totals : communication) add(totals.bytes), add(totals.in_flight_ms), add(totals.exposed_ms);
  }
  return values;
}

std::vector<ModulePhases> PhaseTable::means(const std::vector<double>& sum) const {
  BRAID_CHECK_EQ(sum.size(), rows_.size() * (kPhases + 3 * kCommKinds), "the values of each row");
  std::vector<ModulePhases> means;
  auto value = sum.begin();
  for (const Row& row : rows_) {
    ModulePhases& mean = means.emplace_back(ModulePhases{row.module, row.waits_for});
    const auto next = [&] { return *value++ / row.ranks; };
    for (double& ms : mean.mean.phase_ms) ms = next();
    for (CommTotals& totals : mean.communication)
      for (double* field : {&totals.bytes, &totals.in_flight_ms, &totals.exposed_ms}) *field = next();
  }
  return means;
}

std::string to_lines(const std::vector<ModulePhases>& rows) {
  std::size_t name_width = 0;
  for (const ModulePhases& row : rows) name_width = std::max(name_width, row.module.size());
  std::vector<std::string> times, communication;  // by row
  for (const ModulePhases& row : rows) {
    times.push_back(fmt::format(" time (ms) | {:<{}} |", row.module, name_width));
    communication.push_back(fmt::format(" comm (ms) | {:<{}} |", row.module, name_width));
  }
  for (const Phase phase : kColumns) {
    if (std::ranges::all_of(rows, [&](const ModulePhases& row) { return row.mean.ms(phase) == 0; })) continue;
    std::size_t label_width = 0;
    for (const ModulePhases& row : rows) label_width = std::max(label_width, label_of(row, phase).size() + 1);
    for (std::size_t i = 0; i < rows.size(); ++i)
      times[i] += fmt::format(" {:<{}} {:7.1f} ({:2.0f} %) |", label_of(rows[i], phase) + ":", label_width,
                              rows[i].mean.ms(phase), 100 * rows[i].mean.share(phase));
  }
  bool communicates = false;
  for (std::size_t kind = 0; kind < kCommKinds; ++kind) {
    const auto is_used = [&](const ModulePhases& row) { return row.communication[kind].in_flight_ms > 0; };
    if (std::ranges::none_of(rows, is_used)) continue;
    communicates = true;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const CommTotals& totals = rows[i].communication[kind];
      const std::string cell = fmt::format("{:6.1f}/{:7.1f} (hidden {:3.0f} %)", totals.exposed_ms, totals.in_flight_ms,
                                           100 * totals.hidden());
      communication[i] +=
          fmt::format(" {}: {:>29} |", name_of(static_cast<CommKind>(kind)), is_used(rows[i]) ? cell : "-");
    }
  }
  std::string text;
  for (const std::string& line : times) text += line + "\n";
  for (const std::string& line : communication) text += communicates ? line + "\n" : "";
  return text;
}

std::string to_line(const IterationRecord& record) {
  const StepRecord& step = record.step;
  const auto since_epoch = std::chrono::floor<std::chrono::microseconds>(record.time.time_since_epoch());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  std::string line = fmt::format(
      " [{:%Y-%m-%d %H:%M:%S}.{:06}] iteration {:8d}/{:8d} | consumed samples: {:12d} | elapsed time per iteration "
      "(ms): {:.1f} |",
      fmt::localtime(std::time_t{seconds.count()}), (since_epoch - seconds).count(), step.iteration, record.iterations,
      step.consumed_samples, record.elapsed_ms);
  if (record.tflops_per_device)
    line += fmt::format(" throughput per {0} (TFLOP/s/{0}): {1:.1f} |", record.device, *record.tflops_per_device);
  if (record.tokens_per_device)
    line += fmt::format(" tokens per {0} (tokens/s/{0}): {1:.1f} |", record.device, *record.tokens_per_device);
  if (step.learning_rate) line += fmt::format(" learning rate: {:.6E} |", *step.learning_rate);
  line += fmt::format(" global batch size: {:5d} |", record.global_batch);
  if (step.lm_loss) line += fmt::format(" lm loss: {:.6E} |", plain(*step.lm_loss));
  if (step.seq_load_balancing_loss)
    line += fmt::format(" seq_load_balancing_loss: {:.6E} |", plain(*step.seq_load_balancing_loss));
  line += fmt::format(" loss scale: {:.1f} |", step.loss_scale);
  if (step.grad_norm) line += fmt::format(" grad norm: {:.3f} |", plain(*step.grad_norm));
  if (step.num_zeros) line += fmt::format(" num zeros: {} |", *step.num_zeros);
  line += fmt::format(" number of skipped iterations: {:3d} | number of nan iterations: {:3d} |",
                      record.skipped_iterations, record.nan_iterations);
  if (record.without_targets > 0)
    line += fmt::format(" iterations with nothing to predict: {:3d} |", record.without_targets);
  return line;
}

void IterationLog::Mean::add(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return;
  sum += *value;
  ++count;
}

std::optional<IterationRecord> IterationLog::add(const StepRecord& step, const Moment& now) {
  last_step_ = step;
  ++interval_.iterations;
  interval_.tokens += step.num_tokens;
  if (step.lm_loss && !std::isfinite(*step.lm_loss)) ++interval_.nans;
  if (!step.lm_loss) ++interval_.without_targets;
  if (step.skipped) {
    ++interval_.skipped;
  } else {
    interval_.lm_loss.add(step.lm_loss);
    interval_.seq_load_balancing_loss.add(step.seq_load_balancing_loss);
  }
  const bool is_last = step.last || step.iteration == facts_.iterations;
  return closes_interval(log_interval_, step.iteration, is_last) ? close(now) : std::nullopt;
}

std::optional<IterationRecord> IterationLog::close(const Moment& now) {
  if (interval_.iterations == 0) return std::nullopt;
  const IterationRecord record = record_of(last_step_, now);
  interval_ = {.since = now.steady};
  return record;
}

IterationRecord IterationLog::record_of(const StepRecord& last, const Moment& now) const {
  const double elapsed_s = std::chrono::duration<double>(now.steady - interval_.since).count();
  const auto per_device = [&](double done) {
    return done > 0 && elapsed_s > 0 ? std::optional(done / elapsed_s / facts_.ranks) : std::nullopt;
  };
  IterationRecord record = {.step = last,
                            .time = now.wall,
                            .iterations = facts_.iterations,
                            .elapsed_ms = 1e3 * elapsed_s / interval_.iterations,
                            .tflops_per_device = per_device(1e-12 * facts_.flops_per_iteration * interval_.iterations),
                            .tokens_per_device = per_device(interval_.tokens),
                            .device = facts_.device,
                            .global_batch = facts_.global_batch,
                            .skipped_iterations = interval_.skipped,
                            .nan_iterations = interval_.nans,
                            .without_targets = interval_.without_targets};
  record.step.lm_loss = interval_.lm_loss.value_or(last.lm_loss);
  record.step.seq_load_balancing_loss = interval_.seq_load_balancing_loss.value_or(last.seq_load_balancing_loss);
  return record;
}

std::string to_lines(const EvaluationRecord& record) {
  const std::string line = fmt::format(
      " validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | right tokens: {:.1f} % "
      "| right answers: {:.1f} % | ",
      record.iteration, record.lm_loss, perplexity(record.lm_loss), 100 * record.right_tokens,
      100 * record.right_answers);
  const std::string frame(line.size() + 1, '-');
  return fmt::format("{0}\n{1}\n{0}\n", frame, line);
}

MemoryUse host_memory() {
  long pages_mapped = 0, pages_resident = 0;
  std::ifstream("/proc/self/statm") >> pages_mapped >> pages_resident;
  // The high-water mark of getrusage() is inherited from the program that this process was before exec.
  std::ifstream status("/proc/self/status");
  double most_kb = 0;
  for (std::string word; status >> word;)
    if (word == "VmHWM:") status >> most_kb;
  constexpr double kMb = 1 << 20;
  MemoryUse memory;
  memory.host_mb = static_cast<double>(pages_resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / kMb;
  memory.max_host_mb = std::max(memory.host_mb, most_kb * 1024 / kMb);
  return memory;
}

std::vector<double> to_values(const MemoryUse& m) {
  return {m.allocated_mb, m.max_allocated_mb, m.reserved_mb, m.max_reserved_mb, m.host_mb, m.max_host_mb};
}

MemoryUse memory_of(const std::vector<double>& values) {
  BRAID_CHECK_EQ(values.size(), 6u, "one value for each member");
  return {values[0], values[1], values[2], values[3], values[4], values[5]};
}

std::string to_line(const MemoryUse& m) {
  const std::string gpu =
      fmt::format(" allocated: {:.2f} | max allocated: {:.2f} | reserved: {:.2f} | max reserved: {:.2f} |",
                  m.allocated_mb, m.max_allocated_mb, m.reserved_mb, m.max_reserved_mb);
  return fmt::format("memory (MB) |{} host: {:.2f} | max host: {:.2f}", m.max_reserved_mb > 0 ? gpu : "", m.host_mb,
                     m.max_host_mb);
}

std::string to_text(const RunSummary& summary, const RunFacts& facts) {
  Rows rows = {
      {"iterations",
       fmt::format("{} (now at {} of {})", summary.iterations_done, summary.last_iteration, facts.iterations)},
      {"lm loss", fmt::format("{} -> {}", loss_text(summary.first_loss), loss_text(summary.last_loss))},
  };
  const auto done = static_cast<double>(summary.iterations_done);
  if (done > 0 && summary.seconds > 0) {
    rows.push_back({"time per iteration", fmt::format("{:.1f} ms", 1e3 * summary.seconds / done)});
    if (summary.tokens > 0)
      rows.push_back({"throughput", rate_text(summary.tokens / summary.seconds, facts.ranks, "tokens/s")});
    if (facts.flops_per_iteration > 0)
      rows.push_back(
          {"compute", rate_text(1e-12 * facts.flops_per_iteration * done / summary.seconds, facts.ranks, "TFLOP/s")});
  }
  rows.push_back({"skipped, nan", fmt::format("{}, {}", summary.skipped_iterations, summary.nan_iterations)});
  for (const auto& [name, count] : {std::pair("damaged samples", summary.samples.damaged),
                                    {"too long samples", summary.samples.too_long},
                                    {"cut samples", summary.samples.cut},
                                    {"without targets", summary.samples.without_targets}})
    if (count > 0) rows.push_back({name, std::to_string(count)});
  if (const auto& memory = summary.memory) {
    const std::string of_gpu =
        fmt::format("{:.0f} MB GPU ({:.0f} MB in tensors), ", memory->max_reserved_mb, memory->max_allocated_mb);
    rows.push_back({"peak memory of a rank",
                    fmt::format("{}{:.0f} MB host", memory->max_reserved_mb > 0 ? of_gpu : "", memory->max_host_mb)});
  }
  std::string text = "\n" + format_table({"run ended", summary.ended_by}, rows);
  if (!summary.phases.empty()) text += "\n" + phase_table(summary.phases);
  return text + comm_table(summary.phases, done);
}

MetricsFile::MetricsFile(const std::string& path) : file_(path, AppendOnlyFile::Start::AtEnd) {
  if (file_.size() > 0 && file_.last_char() != '\n') file_.append("\n");
}

void MetricsFile::add(const StepRecord& step, const IterationTimes& times) {
  const nlohmann::ordered_json line = {
      {"iteration", step.iteration},
      {"consumed_samples", step.consumed_samples},
      {"lm_loss", or_null(step.lm_loss)},
      {"grad_norm", or_null(step.grad_norm)},
      {"learning_rate", or_null(step.learning_rate)},
      {"loss_scale", step.loss_scale},
      {"num_zeros", or_null(step.num_zeros)},
      {"seq_load_balancing_loss", or_null(step.seq_load_balancing_loss)},
      {"iteration_ms", times.iteration_ms},
      {"tokens_per_s", times.tokens_per_s},
      {"skipped", step.skipped},
      {"time", times.time},
      {"started", times.started},
  };
  file_.append(line.dump() + "\n");
}

}  // namespace braid
