#include "report/compare.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "formats/safetensors.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

RunRecord log_of(const std::string& text) { return merged(parse_starts(text)); }

std::string metrics_line(int iteration, double loss, const std::string& more = "") {
  return fmt::format("{{\"iteration\":{},\"lm_loss\":{},\"skipped\":false{}}}\n", iteration, loss, more);
}

// What Megatron prints, with another part of the line before its end.
std::string log_line(int iteration, double loss, const std::string& more = "") {
  return fmt::format(
      " [2026-11-17 17:39:02.5] iteration {:8d}/ 500 | consumed samples: {} | lm loss: {:.6E} | {}number of skipped "
      "iterations:   0 |\n",
      iteration, 8 * iteration, loss, more);
}

double loss_at(int iteration) { return 2 + 3.0 / iteration; }

double mean_loss(int first, int last) {
  double sum = 0;
  for (int iteration = first; iteration <= last; ++iteration) sum += loss_at(iteration);
  return sum / (last - first + 1);
}

std::string metrics_to(int last, const std::string& more = "") {
  std::string text;
  for (int iteration = 1; iteration <= last; ++iteration) text += metrics_line(iteration, loss_at(iteration), more);
  return text;
}

const ComparedFigure& figure_of(const RunComparison& comparison, const std::string& name) {
  const auto found = std::ranges::find(comparison.figures, name, &ComparedFigure::name);
  if (found == comparison.figures.end()) throw std::runtime_error("no figure " + name);
  return *found;
}

TEST(CompareRuns, NamesTheFirstIterationThatDiffers) {
  const RunRecord a = parse_metrics(metrics_line(1, 4) + metrics_line(2, 3) + metrics_line(3, 2));
  const RunRecord b = parse_metrics(metrics_line(1, 4) + metrics_line(2, 3.03) + metrics_line(3, 2.5));
  const RunComparison comparison = compare_runs(a, b, {});
  const ComparedFigure& loss = figure_of(comparison, "lm_loss");
  EXPECT_FALSE(comparison.is_equal);
  EXPECT_THAT(loss.different, ElementsAre(2, 3));
  EXPECT_EQ(loss.max_absolute, 0.5);
  EXPECT_EQ(loss.max_relative, 0.2);
  EXPECT_EQ(loss.at_max_relative, 3);
  EXPECT_NEAR(loss.mean_relative, (0.03 / 3.03 + 0.2) / 3, 1e-15);
  // numpy.corrcoef([4, 3, 2], [4, 3.03, 2.5])
  EXPECT_NEAR(*loss.correlation, 0.9859605517333259, 1e-12);
  EXPECT_THAT(figure_of(compare_runs(a, b, {.relative = 0.011}), "lm_loss").different, ElementsAre(3));
  EXPECT_TRUE(compare_runs(a, b, {.relative = 0.1, .absolute = 0.3}).is_equal);
  EXPECT_TRUE(compare_runs(a, a, {}).is_equal);
}

// The log has seven digits of a mean over ten iterations.
TEST(CompareRuns, ALogsMeansAreComparedWithMeansOfTheSameIterations) {
  const RunRecord metrics = parse_metrics(metrics_to(30));
  const std::string start = "initialized the weights of language in 1.0 s\n";
  const std::string log = log_line(10, mean_loss(1, 10)) + log_line(20, mean_loss(11, 20)) +
                          log_line(25, mean_loss(21, 25));  // where the run ended
  for (const std::string& text : {start + log, log}) {
    const RunComparison comparison = compare_runs(metrics, log_of(text), {});
    EXPECT_TRUE(comparison.is_equal) << comparison_text(comparison);
    EXPECT_THAT(figure_of(comparison, "lm_loss").a, SizeIs(3));
    EXPECT_THAT(comparison.runs[0].iterations_only_here, ElementsAre(26, 27, 28, 29, 30));
    EXPECT_THAT(comparison.runs[1].iterations_only_here, IsEmpty());
  }
  const RunRecord other = log_of(start + log_line(10, mean_loss(1, 10) + 3e-6));
  EXPECT_THAT(figure_of(compare_runs(metrics, other, {}), "lm_loss").different, ElementsAre(10));
}

TEST(CompareRuns, LogsOfDifferentIntervals) {
  const RunRecord by_5 = log_of(log_line(5, mean_loss(1, 5)) + log_line(10, mean_loss(6, 10)) +
                                log_line(15, mean_loss(11, 15)) + log_line(20, mean_loss(16, 20))),
                  by_10 = log_of(log_line(10, mean_loss(1, 10)) + log_line(20, mean_loss(11, 20))),
                  by_4 = log_of(log_line(4, 1) + log_line(8, 1) + log_line(12, 1) + log_line(16, 1) + log_line(20, 1));
  EXPECT_TRUE(compare_runs(by_5, by_10, {}).is_equal);
  EXPECT_THAT(compare_runs(by_5, by_10, {}).runs[0].iterations_only_here, IsEmpty());
  const ComparedFigure loss = figure_of(compare_runs(by_4, by_10, {}), "lm_loss");
  EXPECT_EQ(loss.without_counterpart, 1);  // no points of the first one add up to iterations 11 to 20
  EXPECT_THAT(loss.a, IsEmpty());
}

// A resumed run's first interval may be shorter than the others.
TEST(CompareRuns, AnIntervalBeginsWhereTheRunWasResumed) {
  const RunRecord log =
      log_of(log_line(10, mean_loss(1, 10)) + "the run continues after iteration 14 and 112 samples\n" +
             log_line(20, mean_loss(15, 20)));
  EXPECT_TRUE(compare_runs(parse_metrics(metrics_to(20)), log, {}).is_equal);
}

TEST(CompareRuns, IterationsThatWereSkippedAreNotPartOfAMean) {
  const std::string metrics = metrics_line(1, 4) + "{\"iteration\":2,\"lm_loss\":90,\"skipped\":true}\n" +
                              "{\"iteration\":3,\"lm_loss\":null,\"skipped\":true}\n" + metrics_line(4, 2);
  const RunRecord log = log_of("initialized the weights of language in 1 s\n" + log_line(4, 3));
  EXPECT_TRUE(compare_runs(parse_metrics(metrics), log, {}).is_equal);
  // An iteration that the file lacks could have had any loss.
  const RunRecord gap = parse_metrics(metrics_line(1, 3) + metrics_line(2, 3) + metrics_line(4, 3));
  EXPECT_THAT(testing::error_of<ConfigError>([&] { compare_runs(gap, log, {.absolute = 9}, {"lm_loss"}); }),
              HasSubstr("no value of the same iteration in common"));
}

RunRecord events_of(std::initializer_list<ScalarEvent> events) { return record_of(events); }

// Megatron-LM writes the time in seconds; the tag shows whose file it is.
TEST(CompareRuns, MegatronsEventFilesHaveTheLossOfOneIteration) {
  const RunRecord metrics = parse_metrics(metrics_to(20));
  const auto scalar = [](const char* tag, int step, double value) {
    return ScalarEvent{.tag = tag, .step = step, .value = static_cast<double>(static_cast<float>(value))};
  };
  const RunRecord megatron =
      events_of({scalar("lm loss", 10, loss_at(10)), scalar("lm loss", 20, loss_at(20)),
                 scalar("lm loss vs samples", 80, 9), scalar("grad-norm", 10, 1), scalar("iteration-time", 10, 0.5)});
  const RunRecord fork = events_of({scalar("lm loss", 10, mean_loss(1, 10)), scalar("lm loss", 20, mean_loss(11, 20)),
                                    scalar("grad-norm", 10, 1), scalar("iteration-time-ms", 10, 500)});
  EXPECT_TRUE(compare_runs(metrics, megatron, {}).is_equal);
  EXPECT_TRUE(compare_runs(metrics, fork, {}).is_equal);
  EXPECT_THAT(figure_of(compare_runs(metrics, fork, {}), "lm_loss").a, SizeIs(2));
  EXPECT_EQ(figure_of(compare_runs(megatron, fork, {}), "lm_loss").without_counterpart, 2);
}

TEST(CompareRuns, DigitsThatAFileLacksAreNoDifference) {
  const RunRecord exact = parse_metrics(metrics_line(1, 4, ",\"grad_norm\":1.41949,\"learning_rate\":2.8832864e-3"));
  const auto log = [](const char* norm, const char* rate) {
    return log_of(log_line(1, 4, fmt::format("learning rate: {} | grad norm: {} | ", rate, norm)));
  };
  EXPECT_TRUE(compare_runs(exact, log("1.419", "2.883286E-03"), {}).is_equal);
  EXPECT_TRUE(compare_runs(exact, log("1.4", "2.88E-03"), {}).is_equal);
  EXPECT_FALSE(compare_runs(exact, log("1.420", "2.883286E-03"), {}).is_equal);
  EXPECT_FALSE(compare_runs(exact, log("1.419", "2.883287E-03"), {}).is_equal);
  EXPECT_FALSE(compare_runs(log("1.419", "1E-3"), log("1.420", "1E-3"), {}).is_equal);  // as exact as each other
}

TEST(CompareRuns, NanEqualsNan) {
  const std::string nan = "{\"iteration\":2,\"lm_loss\":null,\"skipped\":true}\n";
  const RunRecord a = parse_metrics(metrics_line(1, 4) + nan),
                  b = parse_metrics(metrics_line(1, 4) + metrics_line(2, 3));
  EXPECT_TRUE(compare_runs(a, a, {}).is_equal);
  EXPECT_THAT(figure_of(compare_runs(a, b, {.relative = 100}), "lm_loss").different, ElementsAre(2));
}

// A metrics file and a log name the same values differently; values that neither knows are compared by name.
TEST(CompareRuns, AnyValueThatBothHaveIsCompared) {
  const RunRecord a = parse_metrics(metrics_line(1, 4, ",\"num_zeros\":7,\"z_loss\":0.5,\"started\":5,\"time\":6"));
  const RunRecord b = log_of(log_line(1, 4, "num zeros: 8 | z loss: 0.5 | params norm: 3.000 | "));
  const RunComparison comparison = compare_runs(a, b, {});
  EXPECT_THAT(figure_of(comparison, "num_zeros").different, ElementsAre(1));
  EXPECT_THAT(figure_of(comparison, "z_loss").different, IsEmpty());
  EXPECT_THAT(comparison.runs[0].only_here, IsEmpty());
  EXPECT_THAT(comparison.runs[1].only_here, ElementsAre("consumed_samples", "params_norm"));
  EXPECT_THAT(comparison_text(comparison), HasSubstr("differ: num zeros"));
  EXPECT_TRUE(compare_runs(a, b, {}, {"lm_loss", "z_loss"}).is_equal);
  EXPECT_THAT(testing::error_of<ConfigError>([&] { compare_runs(a, b, {}, {"lm_los"}); }),
              HasSubstr("did you mean 'lm_loss'?"));
}

std::string line_of_fork(int iteration, int consumed, double ms) {
  return fmt::format(
      " [2026-11-17 17:{:02d}:02.5] iteration {:8d}/ 500 | consumed samples: {} | elapsed time per iteration (ms): "
      "{:.1f} | "
      "global batch size:     8 | lm loss: 1.0 |\n",
      iteration / 10, iteration, consumed, ms);
}

// The fork's counter begins at 0 in each start.
TEST(CompareRuns, ConsumedSamplesAreCountedOnAfterAResume) {
  const std::string first = line_of_fork(10, 80, 900) + line_of_fork(20, 160, 500),
                    second = "resuming hetero training at iteration 20\n" + line_of_fork(30, 80, 800) +
                             line_of_fork(40, 160, 500);
  const RunRecord run = log_of(first + second), rest = log_of(second);
  EXPECT_THAT(run.curves.at("consumed_samples"),
              ElementsAre(Pair(10, 80), Pair(20, 160), Pair(30, 240), Pair(40, 320)));
  EXPECT_THAT(rest.curves.at("consumed_samples"), ElementsAre(Pair(30, 240), Pair(40, 320)));
  EXPECT_THAT(run.warnings, ElementsAre(HasSubstr("0 again before iteration 30")));
  const std::string braid =
      line_of_fork(10, 80, 510) + line_of_fork(20, 160, 510) + line_of_fork(30, 240, 510) + line_of_fork(40, 320, 510);
  EXPECT_THAT(log_of(braid).warnings, IsEmpty());
  const RunComparison comparison = compare_runs(run, log_of(braid), {});
  EXPECT_TRUE(comparison.is_equal);
  EXPECT_EQ(comparison.runs[0].iteration_ms, 500);  // the first interval of each start contains its load
}

TEST(CompareRuns, RunsWithoutACommonIterationCannotBeCompared) {
  const RunRecord a = parse_metrics(metrics_line(1, 4)), b = parse_metrics(metrics_line(2, 4));
  EXPECT_THROW(compare_runs(a, b, {}), ConfigError);
  EXPECT_THROW(compare_runs(a, RunRecord(), {}), ConfigError);
}

// Spans of 2^53 iterations are not walked through.
TEST(CompareRuns, HugeIterationsEndSoon) {
  const RunRecord metrics =
      parse_metrics("{\"iteration\":1,\"lm_loss\":3}\n{\"iteration\":9007199254740992,\"lm_loss\":2}\n");
  const RunRecord log = log_of(
      " iteration 1/ 2 | consumed samples: 8 | lm loss: 3.0 |\n"
      " iteration 9007199254740992/ 2 | consumed samples: 8 | lm loss: 2.0 |\n");
  EXPECT_EQ(figure_of(compare_runs(metrics, log, {}), "lm_loss").without_counterpart, 1);
}

TEST(CompareRuns, TheTextShowsBothSides) {
  RunRecord a = parse_metrics(metrics_to(3)), b = parse_metrics(metrics_to(2) + metrics_line(3, 3.5));
  a.name = "base";
  b.name = "changed";
  const std::string text = comparison_text(compare_runs(a, b, {}));
  EXPECT_THAT(text, HasSubstr("A  base: 3 points of iterations 1 to 3\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("\n3 +3 +3.5\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("\nlm loss +3 +1 +3: 3, 3.5 +1.43e-01 at 3 "));
  EXPECT_THAT(text, HasSubstr("differ: lm loss\n"));
  const auto json = comparison_json(compare_runs(a, b, {}));
  EXPECT_EQ(json["figures"][0]["first_difference"]["b"], 3.5);
  EXPECT_EQ(json["equal"], false);
}

// --- sample traces

using testing::TemporaryFolder;

std::string trace_line(int step, const std::string& signature, int lane = 0) {
  return fmt::format("{{\"llm_lanes\": [{}], \"role\": \"llm\", \"signatures\": [{}], \"step\": {}}}\n", lane,
                     signature, step);
}

constexpr const char* kTraceFile = "train_dataloader_llm_lane000.rank00004.jsonl";

TEST(CompareTraces, AResumedRestIsAPartOfTheWhole) {
  const TemporaryFolder whole, rest;
  const std::string last = "[18446744073709551615, 2, 3, 0, 0, 4]";
  whole.write(kTraceFile,
              trace_line(0, "[1, 2, 3, 0, 0, 4]") + trace_line(1, "[1, 2, 3, 0, 0, 5]") + trace_line(2, last));
  rest.write("train_dataloader_llm_lane000.rank00008.jsonl", trace_line(2, last) + trace_line(3, last) + "{\"llm_la");
  TraceComparison found = compare_traces(whole.path(), rest.path());
  EXPECT_TRUE(found.is_equal());
  EXPECT_EQ(found.compared, 1);
  EXPECT_EQ(found.steps_only_in_a, 2);
  EXPECT_EQ(found.steps_only_in_b, 1);
  EXPECT_EQ(found.cut_lines, 1);
  rest.write("train_dataloader_llm_lane000.rank00008.jsonl",
             trace_line(1, "[1, 2, 4, 0, 0, 6]") + trace_line(2, "[18446744073709551614, 2, 3, 0, 0, 4]"));
  found = compare_traces(whole.path(), rest.path());
  EXPECT_FALSE(found.is_equal());
  EXPECT_EQ(found.different, 2);
  ASSERT_THAT(found.first_different, SizeIs(1));
  EXPECT_EQ(found.first_different[0].step, 1);
  EXPECT_THAT(found.first_different[0].fields, ElementsAre("loss_mask", "packing"));
  EXPECT_TRUE(compare_traces(whole.path(), rest.path(), {"labels"}).is_equal());
}

// The fork reads pictures on the ranks of the language model, too; Braid does not.
TEST(CompareTraces, AFieldThatOneSideNeverHasIsNotCompared) {
  const TemporaryFolder a, b;
  a.write(kTraceFile, trace_line(0, "[1, 2, 3, 1, 77, 4]") + trace_line(1, "[1, 2, 3, 0, 0, 4]"));
  b.write(kTraceFile, trace_line(0, "[1, 2, 3, 0, 0, 4]") + trace_line(1, "[1, 2, 3, 0, 0, 4]"));
  const TraceComparison found = compare_traces(a.path(), b.path());
  EXPECT_TRUE(found.is_equal());
  EXPECT_THAT(found.absent_fields, ElementsAre("image_size of llm (B has none)", "images of llm (B has none)"));
  b.write(kTraceFile, trace_line(0, "[1, 2, 3, 0, 0, 4]") + trace_line(1, "[1, 2, 3, 1, 77, 4]"));
  EXPECT_EQ(compare_traces(a.path(), b.path()).different, 2);
}

TEST(CompareTraces, AFileThatTheWholeLacksIsADifference) {
  const TemporaryFolder a, b;
  for (const TemporaryFolder* folder : {&a, &b}) folder->write(kTraceFile, trace_line(0, "[1, 2, 3, 0, 0, 4]"));
  b.write("train_dataloader_llm_lane001.rank00005.jsonl", trace_line(0, "[1, 2, 3, 0, 0, 4]", 1));
  EXPECT_FALSE(compare_traces(a.path(), b.path()).is_equal());
  EXPECT_TRUE(compare_traces(b.path(), a.path()).is_equal());
}

TEST(CompareTraces, WhatCannotBeComparedIsRefused) {
  const TemporaryFolder whole, other, empty;
  const std::string line = trace_line(0, "[1, 2, 3, 0, 0, 4]");
  whole.write(kTraceFile, line);
  const auto refusal = [&](const std::string& text) {
    other.write(kTraceFile, text);
    return testing::error_of<ConfigError>([&] { compare_traces(whole.path(), other.path()); });
  };
  EXPECT_THAT(refusal(line + line), HasSubstr("step 0 occurs twice"));
  EXPECT_THAT(refusal(trace_line(1, "[1, 2, 3, 0, 0, 4]")), HasSubstr("no step of the same reader in common"));
  for (const char* bad : {"[]\n", "{}\n", "{\"step\": -1}\n", "\n", "{\"llm_lanes\": 1, \"role\": 2}\n"})
    EXPECT_THAT(refusal(bad + line), HasSubstr("line 1 is no record"));
  EXPECT_THAT(refusal(trace_line(0, "[1, 2, 3]") + line), HasSubstr("line 1 is no record"));
  EXPECT_THAT(testing::error_of<ConfigError>([&] { compare_traces(whole.path(), empty.path()); }),
              HasSubstr("has no sample trace"));
  EXPECT_THAT(testing::error_of<ConfigError>([&] { compare_traces(whole.path(), "/nowhere"); }),
              HasSubstr("is not a folder"));
}

// --- activations

void write_tensors(const std::string& path, const std::map<std::string, std::vector<std::vector<float>>>& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, rows] : tensors)
    infos.push_back({name, StoredDtype::F32, {std::ssize(rows), std::ssize(rows.at(0))}});
  SafetensorsWriter writer = SafetensorsWriter::to_file(path, infos);
  for (const auto& [name, rows] : tensors) {
    std::vector<float> flat;
    for (const std::vector<float>& row : rows) flat.insert(flat.end(), row.begin(), row.end());
    writer.write(name, std::as_bytes(std::span(flat)));
  }
  writer.finish();
}

// Four rows, in parts of two and two, of three and one, and as a whole.
TEST(CompareActivations, PartsOfAnyRankAreJoined) {
  const TemporaryFolder a, b;
  write_tensors(a.path() + "/iter_0000001.rank00000.safetensors", {{"x@0", {{1, 2}, {3, 4}}}});
  write_tensors(a.path() + "/iter_0000001.rank00001.safetensors", {{"x@2", {{5, 6}, {7, -9}}}, {"y@0", {{1}}}});
  write_tensors(b.path() + "/iter_0000001.rank00002.safetensors", {{"x@3", {{7, -8}}}});
  write_tensors(b.path() + "/iter_0000001.rank00003.safetensors", {{"x@0", {{1, 2}, {3, 4}, {5, 6}}}});
  const ActivationComparison found = compare_activations(a.path(), b.path(), {});
  ASSERT_THAT(found.activations, SizeIs(1));
  const ComparedActivation& x = found.activations[0];
  EXPECT_EQ(x.rows, 4);
  EXPECT_EQ(x.absmax_a, 9);
  EXPECT_EQ(x.absmax_b, 8);
  EXPECT_EQ(x.max_absolute, 1);
  EXPECT_DOUBLE_EQ(x.cosine, 212 / std::sqrt(221.0 * 204.0));
  EXPECT_DOUBLE_EQ(x.relative, 1 / std::sqrt(221.0));
  EXPECT_FALSE(found.is_equal);
  EXPECT_THAT(found.only_in_a, ElementsAre("y of iteration 1"));
  EXPECT_TRUE(compare_activations(a.path(), b.path(), {.relative = 0.12}).is_equal);
  write_tensors(b.path() + "/whole.safetensors", {{"x", {{1, 2}, {3, 4}, {5, 6}, {7, -9}}}});
  EXPECT_TRUE(compare_activations(a.path(), b.path() + "/whole.safetensors", {}).is_equal);
}

TEST(CompareActivations, MissingRowsAndOtherShapesAreRefused) {
  const TemporaryFolder whole, folder, empty;
  write_tensors(whole.path() + "/iter_0000002.rank00000.safetensors", {{"x@0", {{1, 2}, {3, 4}}}});
  const auto refusal = [&](const char* name, const std::vector<std::vector<float>>& rows) {
    write_tensors(folder.path() + "/iter_0000002.rank00000.safetensors", {{name, rows}});
    return testing::error_of<ConfigError>([&] { compare_activations(whole.path(), folder.path(), {}); });
  };
  EXPECT_THAT(refusal("x@1", {{1, 2}}), HasSubstr("'x' of iteration 2 has rows missing before row 1"));
  EXPECT_THAT(refusal("x@0", {{1, 2}}), HasSubstr("is [2, 2] in A and [1, 2] in B"));
  EXPECT_THAT(refusal("y@0", {{1, 2}}), HasSubstr("no activation of the same name and iteration"));
  EXPECT_THAT(refusal("x@a", {{1, 2}}), HasSubstr("names no row"));
  EXPECT_THAT(testing::error_of<ConfigError>([&] { compare_activations(whole.path(), empty.path(), {}); }),
              HasSubstr("has no activations"));
}

TEST(CompareActivations, NanEqualsNan) {
  const TemporaryFolder folder;
  const std::string a = folder.path() + "/a.safetensors", b = folder.path() + "/b.safetensors";
  write_tensors(a, {{"x", {{1, NAN}}}});
  write_tensors(b, {{"x", {{1, 2}}}});
  EXPECT_TRUE(compare_activations(a, a, {}).is_equal);
  const ActivationComparison found = compare_activations(a, b, {.absolute = 9});
  EXPECT_FALSE(found.is_equal);
  EXPECT_EQ(found.activations[0].not_finite_a, 1);
  EXPECT_EQ(found.activations[0].not_finite_b, 0);
}

}  // namespace
}  // namespace braid
