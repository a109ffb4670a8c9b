#include "report/compare.h"
#include "base/error.h"
#include "base/strings.h"
#include "pages/page.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFirstFigures[] = {"lm_loss", "grad_norm", "learning_rate"};

// Parts of names of values that say how a run went, not what it computed; and of counts over an interval.
constexpr const char* kNotFigures[] = {"time",   "_ms",     "per_s", "per_gpu",   "throughput",        "mem_",
                                       "memory", "elapsed", "tflop", "number_of", "nothing_to_predict"};

bool is_figure(const std::string& name) {
  return std::ranges::none_of(kNotFigures, [&](const char* part) { return name.find(part) != std::string::npos; });
}

const Curve* find_figure(const RunRecord& run, const std::string& name) {
  for (const Curves* curves : {&run.curves, &run.others})
    if (const auto found = curves->find(name); found != curves->end() && !found->second.empty()) return &found->second;
  return nullptr;
}

std::set<std::string> figure_names(const RunRecord& run) {
  std::set<std::string> names;
  for (const Curves* curves : {&run.curves, &run.others})
    for (const auto& [name, curve] : *curves)
      if (!curve.empty() && is_figure(name)) names.insert(name);
  return names;
}

// The log interval: the most frequent number of iterations from one point to the next; 0 if there is one point. A start
// also logs its last iteration, wherever that is.
std::int64_t interval_of(const RunRecord& run, Curve curve) {
  if (Curve inner = curve; curve.size() > 2) {
    for (const Attempt& attempt : run.attempts) inner.erase(attempt.last);
    if (inner.size() > 1) curve = std::move(inner);
  }
  std::map<std::int64_t, std::int64_t> counts;
  for (auto point = curve.begin(); point != curve.end() && std::next(point) != curve.end(); ++point)
    ++counts[std::next(point)->first - point->first];
  std::int64_t interval = 0, most = 0;
  for (const auto& [length, count] : counts)
    if (count >= most) std::tie(interval, most) = std::pair(length, count);
  return interval;
}

// The distance between neighbouring numbers where the value was rounded.
double unit_of(double value, const CurveForm& form) {
  using enum CurveForm::Digits;
  if (form.digits == All || !std::isfinite(value)) return 0;
  if (form.digits == AfterPoint) return std::pow(10.0, -form.count);
  const double size = std::abs(value);
  if (size == 0) return 0;
  if (form.digits == AfterFirst) return std::pow(10.0, std::floor(std::log10(size)) - form.count);
  const auto rounded = static_cast<float>(size);
  return static_cast<double>(std::nextafter(rounded, HUGE_VALF)) - static_cast<double>(rounded);
}

struct Value {
  double number = 0, unit = 0;
  bool is_computed = false;  // here, as a mean of several points
};

// A figure of one run.
class Series {
 public:
  Series(const RunRecord& run, const std::string& name, const Curve& curve)
      : run_(run), curve_(curve), form_(value_in(run.forms, name).value_or(CurveForm())),
        interval_(interval_of(run, curve)) {
    for (const Attempt& attempt : run.attempts)
      if (attempt.first_is_known) starts_.insert(attempt.first);
  }

  const Curve& curve() const { return curve_; }
  bool is_mean() const { return form_.is_mean; }

  // The point at `end` stands for the iterations after this one. Nothing if that is unknown.
  std::optional<std::int64_t> begin_of(std::int64_t end) const {
    if (!is_mean() || end <= 1) return end - 1;
    std::optional<std::int64_t> begin;
    const auto not_before = [&](std::int64_t iteration) { begin = std::max(begin.value_or(0), iteration); };
    if (const auto point = curve_.find(end); point != curve_.begin()) not_before(std::prev(point)->first);
    if (const auto next = starts_.upper_bound(end); next != starts_.begin()) not_before(*std::prev(next) - 1);
    if (interval_ > 0) not_before(end - interval_);
    return begin;
  }

  Value at(std::int64_t iteration) const {
    const double number = curve_.at(iteration);
    return {number, unit_of(number, form_)};
  }

  // The mean over the iterations after `begin`, up to `end`. Nothing if the run did not log each of them.
  std::optional<Value> over(std::int64_t begin, std::int64_t end) const {
    if (begin_of(end) == begin) return at(end);
    const auto mean = is_mean() ? mean_of_intervals(begin, end) : mean_of_iterations(begin, end);
    return mean ? std::optional(Value{*mean, unit_of(*mean, form_), true}) : std::nullopt;
  }

 private:
  std::optional<double> mean_of_intervals(std::int64_t begin, std::int64_t end) const {
    double sum = 0;
    for (std::int64_t at = end; at > begin;) {
      const auto point = curve_.find(at);
      const auto before = point == curve_.end() ? std::nullopt : begin_of(at);
      if (!before || *before < begin) return std::nullopt;
      sum += point->second * static_cast<double>(at - *before);
      at = *before;
    }
    return sum / static_cast<double>(end - begin);
  }

  // As a log computes it: of the finite values of iterations that made an update. An iteration without any target has
  // no loss.
  std::optional<double> mean_of_iterations(std::int64_t begin, std::int64_t end) const {
    double sum = 0, count = 0;
    for (std::int64_t at = begin + 1; at <= end; ++at) {
      const auto point = curve_.find(at);
      const bool is_skipped = std::ranges::binary_search(run_.skipped, at);
      if (point == curve_.end() && !is_skipped && !has_line(at)) return std::nullopt;
      if (point == curve_.end() || is_skipped || !std::isfinite(point->second)) continue;
      sum += point->second;
      ++count;
    }
    return count > 0 ? sum / count : curve_.at(end);
  }

  bool has_line(std::int64_t iteration) const {
    const auto samples = run_.curves.find("consumed_samples");
    return samples != run_.curves.end() && samples->second.contains(iteration);
  }

  const RunRecord& run_;
  const Curve& curve_;
  const CurveForm form_;
  const std::int64_t interval_;
  std::set<std::int64_t> starts_{};  // first iterations, as far as they are known
};

// Values of the same iterations.
std::optional<std::pair<Value, Value>> values_at(const Series& a, const Series& b, std::int64_t iteration) {
  const auto begin_a = a.begin_of(iteration), begin_b = b.begin_of(iteration);
  if (begin_a == begin_b) return std::pair(a.at(iteration), b.at(iteration));
  if (!begin_a || !begin_b) return std::nullopt;
  const std::int64_t begin = std::min(*begin_a, *begin_b);
  const auto value_a = a.over(begin, iteration), value_b = b.over(begin, iteration);
  return value_a && value_b ? std::optional(std::pair(*value_a, *value_b)) : std::nullopt;
}

// How far apart values may be whose exact values are equal. A mean that is computed here may end in another digit.
double rounding_of(const Value& a, const Value& b) {
  if (a.is_computed || b.is_computed) return a.unit + b.unit;
  return a.unit == b.unit ? a.unit / 2 : (a.unit + b.unit) / 2;
}

double relative(double a, double b) { return a == b ? 0 : std::abs(a - b) / std::max(std::abs(a), std::abs(b)); }

bool are_equal(const Value& a, const Value& b, const Tolerance& tolerance) {
  if (a.number == b.number) return true;
  if (!std::isfinite(a.number) || !std::isfinite(b.number)) return std::isnan(a.number) && std::isnan(b.number);
  const double allowed =
      tolerance.absolute + tolerance.relative * std::max(std::abs(a.number), std::abs(b.number)) + rounding_of(a, b);
  return std::abs(a.number - b.number) <= allowed * (1 + 1e-9);  // the digits of a log are not binary
}

// Pearson's; nothing if one of them is constant.
std::optional<double> correlation_of(const std::vector<std::pair<double, double>>& pairs) {
  const auto is_constant = [&](auto side) {
    return std::ranges::all_of(pairs, [&](const auto& pair) { return pair.*side == pairs.front().*side; });
  };
  using Pair = std::pair<double, double>;
  if (is_constant(&Pair::first) || is_constant(&Pair::second)) return std::nullopt;
  const auto count = static_cast<double>(pairs.size());
  const double mean_a = sum_of<double>(pairs, &Pair::first) / count,
               mean_b = sum_of<double>(pairs, &Pair::second) / count;
  double ab = 0, aa = 0, bb = 0;
  for (const auto& [a, b] : pairs) {
    ab += (a - mean_a) * (b - mean_b);
    aa += (a - mean_a) * (a - mean_a);
    bb += (b - mean_b) * (b - mean_b);
  }
  return ab / std::sqrt(aa) / std::sqrt(bb);
}

ComparedFigure compare(const std::string& name, const Series& a, const Series& b, const Tolerance& tolerance) {
  ComparedFigure figure{.name = name};
  std::vector<std::pair<double, double>> finite;
  for (const auto& [iteration, unused] : a.curve()) {
    if (!b.curve().contains(iteration)) continue;
    const auto values = values_at(a, b, iteration);
    if (!values) {
      ++figure.without_counterpart;
      continue;
    }
    const double x = figure.a[iteration] = values->first.number, y = figure.b[iteration] = values->second.number;
    if (!are_equal(values->first, values->second, tolerance)) figure.different.insert(iteration);
    if (!std::isfinite(x) || !std::isfinite(y)) continue;
    finite.emplace_back(x, y);
    figure.max_absolute = std::max(figure.max_absolute, std::abs(x - y));
    figure.mean_relative += relative(x, y);
    if (relative(x, y) <= figure.max_relative) continue;
    figure.max_relative = relative(x, y);
    figure.at_max_relative = iteration;
  }
  if (!finite.empty()) figure.mean_relative /= static_cast<double>(finite.size());
  figure.correlation = correlation_of(finite);
  return figure;
}

// Iterations that the other run logged, and this one did not although its interval ends there.
std::vector<std::int64_t> missing_in(const Curve& own, std::int64_t interval, const Curve& other) {
  std::vector<std::int64_t> missing;
  for (const auto& [iteration, value] : other) {
    const auto next = own.lower_bound(iteration);
    const bool is_covered = next != own.end() && (interval == 0 || next->first - iteration < interval);
    if (!is_covered) missing.push_back(iteration);
  }
  return missing;
}

std::optional<double> later_iteration_ms(const RunRecord& run) {
  const auto found = run.curves.find("iteration_ms");
  if (found == run.curves.end()) return std::nullopt;
  Curve curve = found->second;
  std::set<std::int64_t> first = {curve.empty() ? 0 : curve.begin()->first};
  for (const Attempt& attempt : run.attempts)
    if (const auto point = curve.lower_bound(attempt.first); point != curve.end()) first.insert(point->first);
  std::vector<double> values;
  for (const auto& [iteration, ms] : curve)
    if (!first.contains(iteration) && std::isfinite(ms)) values.push_back(ms);
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

ComparedRun facts_of(const RunRecord& run) {
  return {.name = run.name,
          .iteration_ms = later_iteration_ms(run),
          .skipped = run.skipped_count,
          .nan = run.nan_count,
          .sources = run.sources,
          .warnings = run.warnings};
}

std::string words_of(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

// The common figures: the first ones first, then by name.
std::vector<std::string> names_to_compare(const std::set<std::string>& a, const std::set<std::string>& b,
                                          const std::vector<std::string>& only) {
  std::vector<std::string> common;
  std::ranges::set_intersection(a, b, std::back_inserter(common));
  std::vector<Problem> problems;
  for (const std::string& name : only)
    if (!contains(common, name))
      problems.push_back(
          {fmt::format("{} is not a figure of both runs", in_quotes(name)), "--only", choice_advice(name, common)});
  if (!problems.empty()) throw ConfigError(std::move(problems));
  if (!only.empty()) std::erase_if(common, [&](const std::string& name) { return !contains(only, name); });
  const auto place = [](const std::string& name) { return std::ranges::find(kFirstFigures, name) - kFirstFigures; };
  std::ranges::stable_sort(common, {}, place);
  return common;
}

using Row = std::vector<std::string>;

std::string number_text(double value) { return fmt::format("{:.7g}", value); }
std::string share_text(double value) { return value == 0 ? "0" : fmt::format("{:.2e}", value); }

// "3-20, 40": iterations at this interval, at most a few ranges.
std::string ranges_text(const std::vector<std::int64_t>& iterations, std::int64_t interval) {
  constexpr std::size_t kMost = 6;
  std::vector<std::string> ranges;
  for (auto first = iterations.begin(); first != iterations.end();) {
    auto last = first;
    while (std::next(last) != iterations.end() && *std::next(last) - *last == interval) ++last;
    if (ranges.size() == kMost) return joined(ranges, ", ") + ", ...";
    ranges.push_back(first == last ? std::to_string(*first) : fmt::format("{}-{}", *first, *last));
    first = std::next(last);
  }
  return joined(ranges, ", ");
}

// First, last, evenly between them, and where a figure differs first.
std::set<std::int64_t> shown_iterations(const std::vector<ComparedFigure>& figures) {
  constexpr std::size_t kRows = 8;
  const Curve& curve = figures.front().a;
  std::set<std::int64_t> shown;
  for (std::size_t row = 0; row < kRows && !curve.empty(); ++row)
    shown.insert(std::next(curve.begin(), static_cast<std::ptrdiff_t>(row * (curve.size() - 1) / (kRows - 1)))->first);
  for (const ComparedFigure& figure : figures)
    if (!figure.different.empty()) shown.insert(*figure.different.begin());
  return shown;
}

std::string values_table(const std::vector<ComparedFigure>& figures) {
  const std::size_t columns = std::min(figures.size(), std::size(kFirstFigures));
  Row header = {"iteration"};
  for (std::size_t i = 0; i < columns; ++i)
    for (const char* run : {"A", "B"}) header.push_back(fmt::format("{} {}", words_of(figures[i].name), run));
  std::vector<Row> rows;
  for (const std::int64_t iteration : shown_iterations(figures)) {
    Row& row = rows.emplace_back(Row{std::to_string(iteration)});
    for (std::size_t i = 0; i < columns; ++i)
      for (const Curve* curve : {&figures[i].a, &figures[i].b}) {
        const auto value = value_in(*curve, iteration);
        row.push_back(value ? number_text(*value) : "-");
      }
  }
  return format_table(header, rows);
}

std::string first_difference(const ComparedFigure& figure) {
  if (figure.different.empty()) return "none";
  const std::int64_t first = *figure.different.begin();
  const double a = figure.a.at(first), b = figure.b.at(first);
  if (number_text(a) == number_text(b)) return fmt::format("{}: {}, {}", first, a, b);  // with all their digits
  return fmt::format("{}: {}, {}", first, number_text(a), number_text(b));
}

std::string agreement_table(const std::vector<ComparedFigure>& figures) {
  std::vector<Row> rows;
  for (const ComparedFigure& figure : figures)
    rows.push_back(
        {words_of(figure.name), std::to_string(figure.a.size()), std::to_string(figure.different.size()),
         first_difference(figure),
         figure.max_relative == 0 ? "0"
                                  : fmt::format("{} at {}", share_text(figure.max_relative), figure.at_max_relative),
         share_text(figure.mean_relative), figure.correlation ? fmt::format("{:.6f}", *figure.correlation) : "-"});
  return format_table({"figure", "compared", "differ", "first difference", "largest, relative", "mean", "correlation"},
                      rows);
}

std::string run_line(const char* letter, const ComparedRun& run) {
  return fmt::format("{}  {}: {} of iterations {} to {}{}\n", letter, run.name, counted(run.points, "point"), run.first,
                     run.last, run.interval > 1 ? fmt::format(", every {}", run.interval) : "");
}

std::string time_text(const ComparedRun& a, const ComparedRun& b) {
  const auto text = [](const std::optional<double>& ms) { return ms ? fmt::format("{:.1f} ms", *ms) : "unknown"; };
  if (!a.iteration_ms && !b.iteration_ms) return "";
  const std::string change = a.iteration_ms && b.iteration_ms && *a.iteration_ms > 0
                                 ? fmt::format(" ({:+.1f} %)", 100 * (*b.iteration_ms / *a.iteration_ms - 1))
                                 : "";
  return fmt::format("time per iteration, without the first interval of each start: A {}, B {}{}\n",
                     text(a.iteration_ms), text(b.iteration_ms), change);
}

Json to_json(const Curve& curve) {
  constexpr std::size_t kMostPoints = 3000;
  Json x = Json::array(), y = Json::array();
  for (const auto& [iteration, value] : thinned(curve, kMostPoints)) {
    x.push_back(iteration);
    y.push_back(value);  // one that is not finite becomes null
  }
  return {{"x", std::move(x)}, {"y", std::move(y)}};
}

Json to_json(const ComparedRun& run) {
  return {{"name", run.name},
          {"points", run.points},
          {"interval", run.interval},
          {"first", run.first},
          {"last", run.last},
          {"only_here", run.only_here},
          {"iterations_only_here", run.iterations_only_here},
          {"iteration_ms", run.iteration_ms ? Json(*run.iteration_ms) : Json(nullptr)},
          {"skipped", run.skipped},
          {"nan", run.nan},
          {"sources", run.sources},
          {"warnings", run.warnings}};
}

Json to_json(const ComparedFigure& figure) {
  Json first = nullptr;
  if (!figure.different.empty()) {
    const std::int64_t at = *figure.different.begin();
    first = {{"iteration", at}, {"a", figure.a.at(at)}, {"b", figure.b.at(at)}};
  }
  return {{"name", figure.name},
          {"compared", figure.a.size()},
          {"different", figure.different.size()},
          {"first_difference", std::move(first)},
          {"without_counterpart", figure.without_counterpart},
          {"max_absolute", figure.max_absolute},
          {"max_relative", figure.max_relative},
          {"at_max_relative", figure.max_relative > 0 ? Json(figure.at_max_relative) : Json(nullptr)},
          {"mean_relative", figure.mean_relative},
          {"correlation", figure.correlation ? Json(*figure.correlation) : Json(nullptr)}};
}

Curve relative_difference(const ComparedFigure& figure) {
  Curve curve;
  for (const auto& [iteration, a] : figure.a) {
    const double b = figure.b.at(iteration);
    curve[iteration] = a == b ? 0 : (b - a) / std::max(std::abs(a), std::abs(b));
  }
  return curve;
}

}  // namespace

RunComparison compare_runs(const RunRecord& a, const RunRecord& b, const Tolerance& tolerance,
                           const std::vector<std::string>& only) {
  RunComparison result{.runs = {facts_of(a), facts_of(b)}};
  const std::set<std::string> names_a = figure_names(a), names_b = figure_names(b);
  for (const std::string& name : names_to_compare(names_a, names_b, only)) {
    ComparedFigure figure =
        compare(name, {a, name, *find_figure(a, name)}, {b, name, *find_figure(b, name)}, tolerance);
    if (!figure.a.empty() || figure.without_counterpart > 0) result.figures.push_back(std::move(figure));
  }
  if (std::ranges::all_of(result.figures, [](const ComparedFigure& figure) { return figure.a.empty(); }))
    throw ConfigError({"the runs have no value of the same iteration in common", "command line",
                       "compare runs that logged the same iterations; `braid report` shows what each of them has"});
  std::stable_partition(result.figures.begin(), result.figures.end(),
                        [](const ComparedFigure& figure) { return !figure.a.empty(); });
  for (const ComparedFigure& figure : result.figures) result.is_equal = result.is_equal && figure.different.empty();
  std::ranges::set_difference(names_a, names_b, std::back_inserter(result.runs[0].only_here));
  std::ranges::set_difference(names_b, names_a, std::back_inserter(result.runs[1].only_here));
  const std::string& main = result.figures.front().name;
  const std::array runs = {&a, &b};
  const std::array curves = {find_figure(a, main), find_figure(b, main)};
  for (std::size_t i = 0; i < 2; ++i) {
    ComparedRun& run = result.runs[i];
    run.points = std::ssize(*curves[i]);
    run.interval = interval_of(*runs[i], *curves[i]);
    run.first = curves[i]->begin()->first;
    run.last = curves[i]->rbegin()->first;
  }
  for (std::size_t i = 0; i < 2; ++i)
    result.runs[i].iterations_only_here = missing_in(*curves[1 - i], result.runs[1 - i].interval, *curves[i]);
  return result;
}

nlohmann::ordered_json comparison_json(const RunComparison& comparison) {
  const auto json = [](const auto& part) { return to_json(part); };
  return {{"equal", comparison.is_equal},
          {"a", to_json(comparison.runs[0])},
          {"b", to_json(comparison.runs[1])},
          {"figures", vector_of<Json>(comparison.figures, json)}};
}

std::string comparison_page(const RunComparison& comparison) {
  Json data = comparison_json(comparison);
  for (std::size_t i = 0; i < comparison.figures.size(); ++i) {
    const ComparedFigure& figure = comparison.figures[i];
    data["figures"][i]["curves"] = {
        {"a", to_json(figure.a)}, {"b", to_json(figure.b)}, {"relative", to_json(relative_difference(figure))}};
  }
  const std::string title = fmt::format("{} and {}", comparison.runs[0].name, comparison.runs[1].name);
  return script_page(title, data.dump(-1, ' ', false, Json::error_handler_t::replace), kCompareJs);
}

std::string comparison_text(const RunComparison& comparison) {
  const auto& [a, b] = comparison.runs;
  std::string text = run_line("A", a) + run_line("B", b) + "\n" + values_table(comparison.figures) + "\n" +
                     agreement_table(comparison.figures) + "\n" + time_text(a, b);
  text += fmt::format("skipped, nan: A {}, {}; B {}, {}\n", a.skipped, a.nan, b.skipped, b.nan);
  for (const auto& [letter, run] : {std::pair("A", &a), {"B", &b}}) {
    if (!run->only_here.empty())
      text += fmt::format("only {} has: {}\n", letter, words_of(joined(run->only_here, ", ")));
    if (!run->iterations_only_here.empty())
      text += fmt::format("only {} has {}: {}\n", letter, counted(std::ssize(run->iterations_only_here), "iteration"),
                          ranges_text(run->iterations_only_here, std::max<std::int64_t>(1, run->interval)));
  }
  for (const ComparedFigure& figure : comparison.figures)
    if (figure.without_counterpart > 0)
      text +=
          fmt::format("{}: {} not compared: a mean over an interval, and the other run lacks some of its iterations\n",
                      words_of(figure.name), counted(figure.without_counterpart, "point"));
  for (const auto& run : comparison.runs)
    for (const std::string& warning : run.warnings) text += fmt::format("warning: {}: {}\n", run.name, warning);
  std::vector<std::string> different;
  for (const ComparedFigure& figure : comparison.figures)
    if (!figure.different.empty()) different.push_back(words_of(figure.name));
  return text + (different.empty() ? "\nno figure differs\n" : fmt::format("\ndiffer: {}\n", joined(different, ", ")));
}

}  // namespace braid
