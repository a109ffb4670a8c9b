#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "log/log_files.h"
#include "report/report.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using testing::TemporaryFolder;

constexpr const char* kMetrics =
    "{\"iteration\":1,\"lm_loss\":4.0,\"iteration_ms\":200.0,\"tokens_per_s\":600.0,\"skipped\":false}\n"
    "{\"iteration\":2,\"lm_loss\":3.0,\"iteration_ms\":100.0,\"tokens_per_s\":1200.0,\"skipped\":false}\n";
constexpr const char* kRecipe =
    "topology:\n  colocated: false\n  modules:\n    images: {kind: encoder, dp: 2}\n"
    "    language: {kind: language, tp: 2, dp: 2}\nmodel:\n  provider: tiny-vlm\ntrain:\n  iterations: 2\n";

std::string folder_in(const TemporaryFolder& folder, const std::string& name) {
  const std::string path = folder.path() + "/" + name;
  std::filesystem::create_directories(path);
  return path;
}

TEST(FindRuns, TakesWhatAFolderHasByItsNames) {
  const TemporaryFolder folder;
  folder_in(folder, "logs");
  folder_in(folder, "ckpt/iter_0000010");
  folder.write("m.jsonl", kMetrics);
  folder.write("logs/rank_0.log", "");
  folder.write("logs/recipe.yaml", kRecipe);
  folder.write("ckpt/latest_checkpointed_iteration.txt", "10");
  folder.write("ckpt/iter_0000010/not_a.log", "");
  folder.write("plan.json", "{}");
  const auto runs = find_runs({folder.path() + "/"});
  ASSERT_THAT(runs, SizeIs(1));
  EXPECT_EQ(runs[0].name, std::filesystem::path(folder.path()).filename());
  EXPECT_THAT(runs[0].metrics, ElementsAre(folder.path() + "/m.jsonl"));
  EXPECT_THAT(runs[0].logs, ElementsAre(folder.path() + "/logs/rank_0.log"));
  EXPECT_THAT(runs[0].checkpoint_roots, ElementsAre(folder.path() + "/ckpt"));
  EXPECT_EQ(runs[0].recipe, folder.path() + "/logs/recipe.yaml");
  EXPECT_EQ(runs[0].plan, folder.path() + "/plan.json");
}

TEST(FindRuns, JobsSideBySideAreRunsOfTheirOwn) {
  const TemporaryFolder folder;
  for (const char* name : {"train_1", "train_2"}) {
    folder.write(std::string(name) + ".jsonl", kMetrics);
    folder.write(std::string(name) + ".log", "");
  }
  const auto runs = find_runs({folder.path()});
  ASSERT_THAT(runs, SizeIs(2));
  EXPECT_EQ(runs[1].name, "train_2");
  EXPECT_THAT(runs[1].logs, ElementsAre(folder.path() + "/train_2.log"));
  const auto one = find_runs({folder.path() + "/train_1.log"});
  ASSERT_THAT(one, SizeIs(1));
  EXPECT_THAT(one[0].metrics, ElementsAre(folder.path() + "/train_1.jsonl"));
}

// runs/a has its files in folders of its own, runs/b all side by side, and runs/c was killed before its first step.
TEST(FindRuns, FoldersWithMetricsAreRunsOfTheirOwn) {
  const TemporaryFolder folder;
  for (const char* name : {"runs/a/metrics", "runs/a/logs", "runs/b", "runs/c"}) folder_in(folder, name);
  folder.write("runs/b/m.jsonl", kMetrics);
  folder.write("runs/b/m.log", "");
  folder.write("runs/a/metrics/m.jsonl", kMetrics);
  folder.write("runs/a/logs/rank_0.log", "");
  folder.write("runs/c/rank_0.log", "");
  const auto runs = find_runs({folder.path()});
  ASSERT_THAT(runs, SizeIs(3));
  EXPECT_EQ(runs[0].name, "a");
  EXPECT_THAT(runs[0].metrics, ElementsAre(folder.path() + "/runs/a/metrics/m.jsonl"));
  EXPECT_THAT(runs[0].logs, ElementsAre(folder.path() + "/runs/a/logs/rank_0.log"));
  EXPECT_EQ(runs[1].name, "b");
  EXPECT_THAT(runs[1].logs, ElementsAre(folder.path() + "/runs/b/m.log"));
  EXPECT_EQ(runs[2].name, "c");
  EXPECT_THAT(runs[2].metrics, IsEmpty());
}

TEST(FindRuns, AFolderWithMetricsKeepsItsLogsBesideAnotherRun) {
  const TemporaryFolder folder;
  folder_in(folder, "logs");
  folder_in(folder, "earlier");
  folder.write("m.jsonl", kMetrics);
  folder.write("logs/rank_0.log", "");
  folder.write("earlier/m.jsonl", kMetrics);
  const auto runs = find_runs({folder.path()});
  ASSERT_THAT(runs, SizeIs(2));
  EXPECT_THAT(runs[0].metrics, ElementsAre(folder.path() + "/m.jsonl"));
  EXPECT_THAT(runs[0].logs, ElementsAre(folder.path() + "/logs/rank_0.log"));
  EXPECT_EQ(runs[1].name, "earlier");
}

TEST(FindRuns, OtherLinesOfJsonAreNotMetrics) {
  const TemporaryFolder folder;
  folder_in(folder, "eval");
  folder.write("m.jsonl", kMetrics);
  folder.write("eval/answers.jsonl", "{\"shard\":\"a.tar\",\"answer\":\"an \\\"iteration\\\"\"}\n");
  const auto runs = find_runs({folder.path()});
  ASSERT_THAT(runs, SizeIs(1));
  EXPECT_THAT(runs[0].metrics, ElementsAre(folder.path() + "/m.jsonl"));
}

// Whatever order the file system gives: the folder's own files before those below, then by name, recipe.yaml first.
TEST(FindRuns, TheFirstRecipeAndPlanCount) {
  const TemporaryFolder folder;
  folder.write("m.jsonl", kMetrics);
  std::vector<std::string> names = {"z", "y", "x", "b", "a"};
  for (const std::string& name : names) {
    folder_in(folder, name);
    folder.write(name + "/recipe.yaml", kRecipe);
    folder.write(name + "/plan.json", "{}");
    folder.write(name + "/another.yaml", kRecipe);
  }
  EXPECT_EQ(find_runs({folder.path()}).at(0).recipe, folder.path() + "/a/recipe.yaml");
  EXPECT_EQ(find_runs({folder.path()}).at(0).plan, folder.path() + "/a/plan.json");
  for (const std::string& name : names) folder.write(name + ".yaml", kRecipe);
  std::filesystem::remove_all(folder.path() + "/a");
  EXPECT_EQ(find_runs({folder.path()}).at(0).recipe, folder.path() + "/b/recipe.yaml");
  for (const std::string& name : names) std::filesystem::remove_all(folder.path() + "/" + name);
  EXPECT_EQ(find_runs({folder.path()}).at(0).recipe, folder.path() + "/a.yaml");
}

TEST(FindRuns, EqualNamesGetLonger) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) {
    folder_in(folder, std::string(name) + "/logs");
    folder.write(std::string(name) + "/logs/m.jsonl", kMetrics);
  }
  const auto runs = find_runs({folder.path() + "/a/logs", folder.path() + "/b/logs"});
  EXPECT_EQ(runs.at(0).name, "a/logs");
  EXPECT_EQ(runs.at(1).name, "b/logs");
}

TEST(FindRuns, AllWrongPathsAreNamed) {
  const TemporaryFolder folder;
  const std::string empty = folder_in(folder, "empty");
  const std::string text = folder.write("notes.md", "");
  const std::string message = testing::error_of<ConfigError>([&] { find_runs({empty, text, "/nowhere"}); });
  EXPECT_THAT(message, AllOf(HasSubstr("empty' has no file of a run"), HasSubstr("notes.md' is not a file of a run"),
                             HasSubstr("'/nowhere' does not exist")));
}

TEST(ReadRun, PutsTheSourcesTogether) {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", std::string(kMetrics) + "{\"iter");
  folder.write("recipe.yaml", kRecipe);
  folder.write("rank_2.log",
               "time (ms) | images | forward: 20.0 ( 2 %) |\n"
               "saved iteration 2 to ckpt: 6.50 MiB in 0.3 s (23.58 MiB/s)\nrun ended              SIGTERM\n");
  {
    EventFile events(folder.path() + "/tb");
    events.add_scalar("lm loss", 9, 2);
    events.add_scalar("mem/host-peak-mb", 170, 2);
    events.add_scalar("time-ms/language/forward", 50, 2);
  }
  const RunRecord run = read_run(find_runs({folder.path()}).at(0));
  EXPECT_EQ(run.model, "tiny-vlm");
  EXPECT_EQ(run.ranks, 6);
  EXPECT_EQ(run.iterations, 2);
  EXPECT_THAT(run.curves.at("lm_loss"), ElementsAre(Pair(1, 4), Pair(2, 3)));  // not those of the events
  EXPECT_THAT(run.curves.at("tokens_per_gpu"), ElementsAre(Pair(1, 100), Pair(2, 200)));
  EXPECT_THAT(run.memory_mb.at("host, most"), ElementsAre(Pair(2, 170)));
  EXPECT_THAT(run.modules.at("language").phase_ms.at("forward"), ElementsAre(Pair(2, 50)));
  ASSERT_THAT(run.checkpoints, SizeIs(1));
  EXPECT_FALSE(run.checkpoints[0].exists);
  EXPECT_EQ(run.end.state, RunEnd::State::Finished);
  EXPECT_EQ(run.end.text, "SIGTERM");
  EXPECT_THAT(run.sources, SizeIs(4));
  EXPECT_THAT(run.warnings, ElementsAre(HasSubstr("1 line is cut off or damaged")));
}

// Logs of --log-dir: one rank failed, then the run was started again.
TEST(ReadRun, AFailureBeforeARestartIsNotTheEnd) {
  const TemporaryFolder folder;
  const std::string failure =
      "braid: root cause: rank 5 (host a12, language[tp=1]) failed in iteration 7: CUDA out of memory. Tried to "
      "allocate 1.50 GiB\n";
  const std::string mark = "\nbraid: restart, ranks: 4 [2026-11-17 17:30:00]\n";
  const auto line = [](int iteration, int minute) {
    return " [2026-11-17 17:" + std::to_string(minute) + ":02] iteration " + std::to_string(iteration) +
           "/ 30 | consumed samples: 8 | lm loss: 2.0 |\n";
  };
  folder.write("rank_5.log", failure + mark);
  folder.write("rank_2.log", line(5, 20) + failure + mark + line(10, 40));
  const RunRecord run = read_run(find_runs({folder.path()}).at(0));
  EXPECT_EQ(run.end.state, RunEnd::State::Open) << run.end.text;
  EXPECT_THAT(run.attempts, SizeIs(2));
  EXPECT_THAT(run.failures, SizeIs(1));
  folder.write("rank_2.log", line(5, 20) + mark + line(10, 40) + failure);
  EXPECT_EQ(read_run(find_runs({folder.path()}).at(0)).end.state, RunEnd::State::Failed);
}

TEST(ReadRun, AFailureIsDiagnosed) {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", kMetrics);
  folder.write("recipe.yaml", "train: {iterations: 100}\n");
  folder.write(
      "rank_5.log",
      "braid: root cause: rank 5 (host a12, language[tp=1]) failed in iteration 7: CUDA out of memory. Tried to "
      "allocate 1.50 GiB\n");
  const RunRecord run = read_run(find_runs({folder.path()}).at(0));
  EXPECT_EQ(run.end.state, RunEnd::State::Failed);
  EXPECT_EQ(run.end.diagnosis.at("first_rank"), 5);
  EXPECT_THAT(report_text({run}), HasSubstr("failed: "));
}

TEST(ReadRun, ALogThatIsNotTextIsAWarning) {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", kMetrics);
  folder.write("core.log", std::string("\x7f"
                                       "ELF\0\1\2\0",
                                       8));
  const RunRecord run = read_run(find_runs({folder.path()}).at(0));
  EXPECT_EQ(last_iteration(run), 2);
  EXPECT_THAT(run.warnings, ElementsAre(HasSubstr("core.log' is not text")));
}

TEST(ReadRun, WithoutALogTheEndIsOpen) {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", kMetrics);
  EXPECT_EQ(read_run(find_runs({folder.path()}).at(0)).end.state, RunEnd::State::Open);
}

TEST(Prediction, StandsBesideTheMeasurement) {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", kMetrics);
  folder.write("recipe.yaml", kRecipe);
  folder.write("plan.json", R"({"iteration_s": 0.11, "tokens_per_s_per_gpu": 210,
      "stages": [{"rank": 0, "peak_bytes": 1e9}, {"rank": 2, "peak_bytes": 3e9}]})");
  const RunRecord run = read_run(find_runs({folder.path()}).at(0));
  const auto rows = compare_with_plan(run);
  ASSERT_THAT(rows, SizeIs(3));
  EXPECT_EQ(rows[0].what, "time per iteration");
  EXPECT_DOUBLE_EQ(rows[0].predicted, 110);
  EXPECT_EQ(rows[0].measured, 100);
  EXPECT_EQ(rows[1].measured, 200);
  EXPECT_DOUBLE_EQ(rows[2].predicted, 3);
  EXPECT_EQ(rows[2].measured, std::nullopt);
  EXPECT_THAT(report_text({run}), AllOf(HasSubstr("+10.0 %"), HasSubstr("+5.0 %")));
}

// Of the exposed communication, the module that limits the step counts, though another one is exposed for longer.
TEST(Prediction, ComparesTheModuleThatLimitsTheStep) {
  RunRecord run;
  run.modules["images"].exposed_ms["bridge"] = {{1, 500}};
  run.modules["language"].exposed_ms = {{"tp", {{1, 30}}}, {"gradients", {{1, 10}}}};
  run.prediction = {{"exposed_communication_s", 0.05}, {"bound_by", "language: tp communication"}};
  auto rows = compare_with_plan(run);
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].what, "exposed communication of language");
  EXPECT_DOUBLE_EQ(rows[0].predicted, 50);
  EXPECT_EQ(rows[0].measured, 40);
  run.prediction =
      nlohmann::json::parse(R"({"exposed_communication_s": 0.05, "bound_by": "images: reading", "modules": [
      {"name": "images", "exposed_communication_s": {"tp": 0, "bridge": 0.4}},
      {"name": "language", "exposed_communication_s": {"tp": 0.05}}]})");
  rows = compare_with_plan(run);
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_DOUBLE_EQ(rows[0].predicted, 400);
  EXPECT_EQ(rows[0].measured, 500);
  run.prediction = {{"exposed_communication_s", 0.05}};
  rows = compare_with_plan(run);
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].measured, std::nullopt);
}

TEST(Prediction, MemoryOnACpuIsThatOfTheProcess) {
  RunRecord run;
  run.prediction = nlohmann::json::parse(
      R"({"stages": [{"peak_bytes": 1e8, "device_bytes": 4e8}, {"peak_bytes": 2e8, "device_bytes": 5e8}]})");
  run.memory_mb["host, most"] = {{1, 480}};
  const auto on_cpu = compare_with_plan(run);
  ASSERT_THAT(on_cpu, SizeIs(1));
  EXPECT_DOUBLE_EQ(on_cpu[0].predicted, 0.5);
  EXPECT_DOUBLE_EQ(on_cpu[0].measured.value(), 480 * 1048576e-9);
  run.memory_mb["GPU, most by tensors"] = {{1, 190}};
  const auto on_gpu = compare_with_plan(run);
  ASSERT_THAT(on_gpu, SizeIs(1));
  EXPECT_DOUBLE_EQ(on_gpu[0].predicted, 0.2);
  EXPECT_DOUBLE_EQ(on_gpu[0].measured.value(), 190 * 1048576e-9);
}

TEST(Prediction, APlanThatIsNotJsonIsRefusedWhereItWasAskedFor) {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", kMetrics);
  const std::string bad = folder.write("bad.json", "["),
                    other = folder.write("other.json", R"({"iteration_s": "abc"})");
  const RunFiles files = find_runs({folder.path()}).at(0);
  EXPECT_THAT(testing::error_of<ConfigError>([&] { read_run(files, bad); }),
              HasSubstr("bad.json' is not a plan of a run"));
  EXPECT_THAT(testing::error_of<ConfigError>([&] { read_run(files, other); }), HasSubstr("is not a plan of a run"));
  EXPECT_THAT(compare_with_plan(read_run(files)), IsEmpty());
}

TEST(ReportPage, ManyPointsAreThinnedAndPeaksStay) {
  Curve curve;
  for (int i = 0; i < 100'000; ++i) curve[i] = i == 54'321 ? 1000.0 : i % 7;
  const Curve kept = thinned(curve, 3000);
  EXPECT_LE(kept.size(), 3002u);
  EXPECT_GT(kept.size(), 2000u);
  EXPECT_EQ(*kept.begin(), *curve.begin());
  EXPECT_EQ(*kept.rbegin(), *curve.rbegin());
  EXPECT_EQ(peak_value(kept), 1000);
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.first < b.first; }));
  EXPECT_EQ(thinned(kept, 5000), kept);
}

TEST(ReportPage, NamesCannotEndTheScript) {
  RunRecord run{.name = "</script><script>alert(1)</script>"};
  run.curves["lm_loss"] = {{1, 2.0}};
  const std::string page = report_page({run});
  EXPECT_THAT(page, Not(HasSubstr("</script><script>alert")));
  EXPECT_THAT(page, HasSubstr("\\u003c/script>\\u003cscript>alert(1)"));
}

TEST(ReportPage, SettingsThatDifferAreListed) {
  RunRecord one{.name = "a", .settings = {{"train.lr", "1"}, {"train.seed", "1"}}};
  RunRecord two{.name = "b", .settings = {{"train.lr", "2"}, {"train.seed", "1"}, {"train.x", "3"}}};
  const auto json = report_json({one, two});
  ASSERT_EQ(json["different_settings"].size(), 2u);
  EXPECT_EQ(json["different_settings"][0]["key"], "train.lr");
  EXPECT_EQ(json["different_settings"][1]["values"][0], nullptr);
}

TEST(RunRecord, TextAndPageNameTheSameMemory) {
  RunRecord run{.name = "a"};
  EXPECT_THAT(report_json({run})["runs"][0]["peak_memory"], nullptr);
  run.memory_mb = {{"GPU, most by tensors", {{1, 100}}}, {"GPU, most reserved", {{1, 120}, {2, 130}}}};
  run.memory_mb["host, most"] = {{1, 900}};
  EXPECT_THAT(report_text({run}), HasSubstr("130 MiB (GPU, most reserved)"));
  const auto peak = report_json({run})["runs"][0]["peak_memory"];
  EXPECT_EQ(peak["kind"], "GPU, most reserved");
  EXPECT_EQ(peak["mib"], 130);
}

// What the log says about memory tells where ranks computed, if the recipe leaves that open.
TEST(RunRecord, RanksOnACpuAreNotGpus) {
  const RunRecord unknown{.name = "a"};
  RunRecord on_cpu{.name = "b",
                   .settings = {{"dist.device", "auto"}},
                   .curves = {{"lm_loss", {{1, 3.5}}}, {"tokens_per_gpu", {{1, 7}}}, {"tflops_per_gpu", {{1, 2}}}}};
  on_cpu.memory_mb["host, most"] = {{1, 900}};
  RunRecord on_gpu = on_cpu;
  on_gpu.memory_mb["GPU, tensors"] = {{1, 100}};
  const RunRecord by_recipe{.name = "c", .settings = {{"dist.device", "cpu"}}};
  EXPECT_EQ(device_word(unknown), "GPU");
  EXPECT_EQ(device_word(on_cpu), "rank");
  EXPECT_EQ(device_word(on_gpu), "GPU");
  EXPECT_EQ(device_word(by_recipe), "rank");
  EXPECT_THAT(report_text({on_cpu, by_recipe}), AllOf(HasSubstr("tokens/s per rank"), Not(HasSubstr("GPU"))));
  EXPECT_THAT(report_text({on_gpu, unknown}), HasSubstr("TFLOP/s per GPU  "));
  EXPECT_THAT(report_text({on_gpu, on_cpu}), HasSubstr("tokens/s per GPU or rank"));
  EXPECT_EQ(report_json({on_cpu})["device"], "rank");
  EXPECT_THAT(report_text({unknown}), Not(HasSubstr("per GPU")));
  EXPECT_THAT(report_text({on_cpu}), Not(HasSubstr("->")));  // of one point
}

TEST(Prediction, RatesOnACpuAreThoseOfARank) {
  RunRecord run{.settings = {{"dist.device", "cpu"}}};
  run.prediction = {{"tokens_per_s_per_gpu", 100}, {"tflops_per_gpu", 0.1}, {"device_bytes", 5e8}};
  std::vector<std::string> names;
  for (const Compared& row : compare_with_plan(run)) names.push_back(row.what);
  EXPECT_THAT(names, ElementsAre("tokens per second and rank", "compute per rank", "peak memory of a process"));
}

// `plan simulate` knows the memory of the host, which its ranks share.
TEST(Prediction, MemoryOfAHostIsNotThatOfAProcess) {
  RunRecord run{.settings = {{"dist.device", "cpu"}}};
  run.prediction = {{"tokens_per_s_per_gpu", 100}, {"device_memory", {{"needed_bytes", 1e9}, {"device_bytes", 1e9}}}};
  const std::vector<Compared> rows = compare_with_plan(run);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].what, "tokens per second and rank");
}

TEST(RunRecord, WhatWasRunAgain) {
  RunRecord run;
  run.attempts = {{1, 10}, {8, 20}, {21, 30}};
  EXPECT_EQ(repeated_iterations(run), 3);
}

TEST(ReadRun, FilesOfAnotherProgramAreNoRun) {
  const TemporaryFolder folder;
  folder.write("alternatives.log", "update-alternatives 2026-01-01: link group updated\n");
  EXPECT_TRUE(is_empty(read_run(find_runs({folder.path()}).at(0))));
  folder.write("recipe.yaml", kRecipe);
  EXPECT_FALSE(is_empty(read_run(find_runs({folder.path()}).at(0))));
}

}  // namespace
}  // namespace braid
