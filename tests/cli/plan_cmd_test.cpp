// Commands that inspect a recipe or a model and run nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "cli/cli_support.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryFolder;

TEST(PlanCommand, PlanScheduleChecksAndDraws) {
  const TemporaryFolder folder;
  const std::string recipe = folder.write("recipe.yaml", kShortRecipe), svg = folder.path() + "/schedule.svg";
  const Finished plan =
      braid({"plan", "schedule", recipe, "--svg", svg, "--freeze-vit", "--freeze-projection", "--train.prefetch", "1"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("6 ranks, 2 microbatches"), HasSubstr("images"), HasSubstr("86 %")));
  EXPECT_EQ(testing::run_program({"grep", "-c", "language forward, stage 0, microbatch", svg}).out, "8\n");
  EXPECT_THAT(braid({"plan", "schedule", recipe, "--svg", svg, "--training-stage", "stage1"}).out,
              ContainsRegex("images +0 +48 %.*\nlanguage +0 +76 %"));
  EXPECT_EQ(testing::run_program({"grep", "-c", "images backward (projector only), stage 0, microbatch", svg}).out,
            "4\n");
  const Finished piped = braid({"plan", "schedule", recipe, "--svg", "-"});
  EXPECT_THAT(piped.out, AllOf(::testing::StartsWith("<svg"), ::testing::EndsWith("</svg>\n")));
}

TEST(PlanCommand, PlanSimulatePredictsAndDraws) {
  const TemporaryFolder folder;
  const std::string recipe = folder.write("recipe.yaml", kShortRecipe), svg = folder.path() + "/step.svg",
                    trace = folder.path() + "/step.json";
  const Finished plan = braid({"plan", "simulate", recipe, "--hardware", "h100", "--svg", svg, "--trace", trace});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("h100 (from a datasheet, not measured)"), HasSubstr("6 ranks on 1 node"),
                              HasSubstr("drawn from those of mock samples, 8 steps"), HasSubstr("bound by"),
                              ContainsRegex("balance +-?[0-9.]+ %: [0-9.]+ ms with loader.balance: cost")));
  EXPECT_EQ(testing::run_program({"grep", "-c", "language forward, stage 0, microbatch 0", svg}).out, "2\n");
  const nlohmann::json spans = nlohmann::json::parse(testing::read_file(trace));
  EXPECT_TRUE(std::any_of(spans.begin(), spans.end(), [](const auto& e) { return e["ph"] == "X" && e["dur"] > 0; }));

  const Finished programs =
      braid({"plan", "simulate", recipe, "--json", "--full", "--nodes", "2", "--encoder-nodes", "1"});
  const nlohmann::json json = nlohmann::json::parse(programs.out);
  for (const char* key : {"iteration_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "exposed_communication_s"})
    EXPECT_GT(json[key].get<double>(), 0) << key;
  EXPECT_EQ(json["spread_s"], 0);
  EXPECT_FALSE(json.contains("balance"));  // samples that are not drawn are all equal
  const nlohmann::json balance =
      nlohmann::json::parse(braid({"plan", "simulate", recipe, "--json", "--steps", "2"}).out)["balance"];
  EXPECT_NEAR(balance["gain"], 1 - balance["with_s"].get<double>() / balance["without_s"].get<double>(), 1e-12);
  EXPECT_EQ(balance["replicas"], 1);
  EXPECT_GE(json["bubble"].get<double>(), 0);
  EXPECT_THAT(json["bound_by"].get<std::string>(), ContainsRegex("^(images|language): "));
  EXPECT_EQ(json["ranks"], 16);
  EXPECT_EQ(json["hardware_source"], "datasheet");

  const Finished refused = braid({"plan", "simulate", recipe, "--nodes", "2", "--hardware", "abacus"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("abacus"));
  EXPECT_EQ(braid({"plan", "simulate", recipe, "--compute-efficiency", "nan"}).exit_code, 2);
  EXPECT_EQ(braid({"plan", "simulate", recipe, "--link-efficiency", "nan"}).exit_code, 2);
}

TEST(PlanCommand, PlanShow) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  EXPECT_THAT(braid({"plan", "show", recipe}).out, AllOf(HasSubstr("world of 6 ranks"), HasSubstr("language.dp-cp")));
  EXPECT_THAT(braid({"plan", "show", recipe, "--rank", "3"}).out, HasSubstr("language"));
  const Finished beyond = braid({"plan", "show", recipe, "--rank", "6"});
  EXPECT_EQ(beyond.exit_code, 2);
  EXPECT_THAT(beyond.err, HasSubstr("rank 6 is out of range: the world has 6"));
}

std::vector<std::string> losses_in(const std::string& output) {
  std::vector<std::string> losses;
  for (std::size_t at = output.find("lm loss: "); at != output.npos; at = output.find("lm loss: ", at + 1))
    losses.push_back(output.substr(at, output.find('|', at) - at));
  return losses;
}

// The fastest layout on four ranks that share two cores is not the recipe's on six.
TEST(PlanCommand, SearchWritesARecipeThatTrainsWithTheSameLosses) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe), best = folder.path() + "/best.yaml";
  std::string profile = testing::read_file(BRAID_SOURCE_DIR "/hardware/cpu-2.yaml");
  profile.replace(profile.find("ranks_per_node: 2"), 17, "ranks_per_node: 4");
  const std::string hardware = folder.write("cpu.yaml", profile);
  const std::vector<std::string> same = {"--model.dtype", "float64", "--train.iterations", "2", "--log.interval", "1"};
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.end(), same.begin(), same.end());
    return braid(words);
  };
  const Finished search = run({"plan", "search", recipe, "--nodes", "1", "--hardware", hardware, "--write", best});
  ASSERT_EQ(search.exit_code, 0) << search.err;
  EXPECT_THAT(search.out, AllOf(HasSubstr("4 ranks, global batch 16"), HasSubstr("layouts considered"),
                                ContainsRegex("given +[0-9.]+ +1.00x"), HasSubstr("host: cores")));
  const Finished given = run({"train", recipe}), written = run({"train", best});
  ASSERT_EQ(written.exit_code, 0) << written.err;
  ASSERT_THAT(losses_in(given.out), ::testing::SizeIs(2));
  EXPECT_EQ(losses_in(written.out), losses_in(given.out));
  EXPECT_THAT(braid({"plan", "show", best}).out, Not(HasSubstr("world of 6 ranks")));
}

TEST(PlanCommand, SearchForPrograms) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  const std::vector<std::string> words = {"plan",       "search", recipe,  "--nodes", "1",
                                          "--hardware", "cpu-2",  "--top", "2",       "--json"};
  const Finished search = braid(words);
  EXPECT_THAT(search.out, AllOf(HasSubstr(R"("gpus":2,"global_batch":16)"), HasSubstr(R"("counts":{"layouts":)"),
                                HasSubstr(R"("given":{"iteration_s":)"),
                                ContainsRegex(R"("memory_bytes":[0-9]+,"device_bytes":[0-9]+)"),
                                HasSubstr(R"("best":[{"iteration_s":)"), HasSubstr(R"("pareto":true)"),
                                ContainsRegex(R"("compute_s":[0-9.e-]+,"communication_s":[0-9.e-]+,"waiting_s":)")));
  EXPECT_EQ(search.err, "");  // which is no terminal
  EXPECT_EQ(braid(words).out, search.out);
  EXPECT_THAT(braid({"plan", "search", recipe, "--memory-headroom", "much"}).err,
              HasSubstr("--memory-headroom much is not a share of the memory"));
  EXPECT_THAT(braid({"plan", "search", recipe, "--nodes", "16385"}).err, HasSubstr("use at most 16384"));
  EXPECT_THAT(braid({"plan", "search", recipe, "--nodes", "2", "--hardware", "cpu-2"}).err,
              HasSubstr("the CPU profile 'cpu-2' describes one host, not 2 nodes"));
  EXPECT_THAT(braid({"plan", "search", recipe, "--nodes", "1", "--hardware", "cpu-2"}).out,
              HasSubstr("The recipe as given needs 6 ranks"));
  EXPECT_THAT(braid({"plan", "search", recipe, "--memory-headroom", "99.99%", "--hardware", "h100"}).out,
              HasSubstr("No layout of 8 GPUs fits in 0.0 GB"));
}

// A search takes minutes: what it cannot write is refused before it.
TEST(PlanCommand, FilesAreCheckedBeforeTheWork) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe), in_file = recipe + "/";
  const auto refused = [&](std::vector<std::string> words) {
    const Finished run = braid(words);
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_EQ(run.out, "");
    return run.err;
  };
  EXPECT_THAT(refused({"plan", "search", recipe, "--write", in_file + "best.yaml", "--html", in_file + "page.html"}),
              AllOf(HasSubstr("2 problems"), HasSubstr("where: --write"), HasSubstr("where: --html")));
  EXPECT_THAT(refused({"plan", "search", recipe, "--write", recipe}), HasSubstr("would replace a file that is read"));
  EXPECT_THAT(refused({"plan", "simulate", recipe, "--svg", recipe + ".txt", "--trace", in_file + "t.json", "--html",
                       in_file + "page.html"}),
              AllOf(HasSubstr("3 problems"), HasSubstr("does not end in .svg"), HasSubstr("where: --trace")));
  const std::string profile = folder.write("my.yaml", testing::read_file(BRAID_SOURCE_DIR "/hardware/cpu-2.yaml"));
  EXPECT_THAT(refused({"plan", "search", recipe, "--hardware", profile, "--write", profile}),
              HasSubstr("would replace a file that is read"));
  EXPECT_THAT(refused({"plan", "schedule", recipe, "--svg", recipe + ".txt"}), HasSubstr("does not end in .svg"));
  const std::string trace = folder.path() + "/new/step.json", svg = folder.path() + "/newer/step.svg";
  const Finished run = braid({"plan", "simulate", recipe, "--steps", "1", "--svg", svg, "--trace", trace});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(std::filesystem::exists(trace) && std::filesystem::exists(svg));
}

// Of the commands that predict, all draw the same steps by the same rules, and say which.
TEST(PlanCommand, MemoryAndTimeAreOfTheSameSteps) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  const auto words_of = [&](const char* command, const char* key, const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"plan", command, recipe, "--json"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished run = braid(words);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return nlohmann::json::parse(run.out).at(key).get<std::string>();
  };
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--steps", "3"}, {"--full"}})
    EXPECT_EQ(words_of("memory", "samples", flags), words_of("simulate", "sizes", flags));
  EXPECT_THAT(words_of("memory", "samples", {}), HasSubstr("8 steps"));  // as many as the run has
  EXPECT_THAT(
      words_of("memory", "samples", {"--topology.modules.language.dp", "4096", "--train.global_batch", "16384"}),
      HasSubstr("since there are too many replicas to draw samples for each"));
}

TEST(PlanCommand, TooManyStepsAreRefused) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  for (const char* command : {"simulate", "search", "memory"}) {
    const Finished run = braid({"plan", command, recipe, "--steps", "1000000000"});
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_THAT(run.err, AllOf(HasSubstr("--steps 1000000000 is too many to draw"), HasSubstr("use at most 1000, or")));
  }
}

TEST(PlanCommand, OneStepHasNoSpread) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  EXPECT_THAT(braid({"plan", "simulate", recipe, "--full"}).out, ContainsRegex("iteration +[0-9.]+ ms\n"));
  EXPECT_THAT(braid({"plan", "simulate", recipe, "--steps", "2"}).out, ContainsRegex("iteration +[0-9.]+ ms, \\+- "));
}

// The numbers of a small model are visible.
TEST(PlanCommand, MemoryOfASmallModelIsInMegabytes) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  const Finished small = braid({"plan", "memory", recipe, "--cpu"});
  EXPECT_THAT(small.out, AllOf(ContainsRegex("\nMB  "), ContainsRegex("\nall ranks need [0-9.]+ MB\n"),
                               ContainsRegex(" saves [0-9.]+ MB\n"), Not(HasSubstr("GB")), Not(HasSubstr(" 0.00"))));
  EXPECT_THAT(braid({"plan", "memory", recipe, "--rank", "0"}).out, HasSubstr("\nMB\n"));
  EXPECT_THAT(braid({"plan", "memory", BRAID_SOURCE_DIR "/recipes/nemotron-vlm-54l-9n.yaml", "--rank", "0"}).out,
              HasSubstr("\nGB\n"));
}

// The fullest GPU decides; ranks on a CPU share their host's memory.
TEST(PlanCommand, SaysWhetherARunFits) {
  TemporaryFolder folder;
  const std::string large = BRAID_SOURCE_DIR "/recipes/nemotron-vlm-54l-9n.yaml";
  std::string profile = testing::read_file(BRAID_SOURCE_DIR "/hardware/h100.yaml");
  const std::size_t begin = profile.find("memory_gb:");
  profile.replace(begin, profile.find('\n', begin) - begin, "memory_gb: 20");
  const std::string small_gpu = folder.write("small.yaml", profile);
  const auto fits = [&](const char* command, const std::string& hardware) {
    const Finished told = braid({"plan", command, large, "--hardware", hardware});
    const nlohmann::json json =
        nlohmann::json::parse(braid({"plan", command, large, "--hardware", hardware, "--json"}).out)["device_memory"];
    EXPECT_EQ(json["fits"], json["needed_bytes"] <= json["capacity_bytes"]);
    EXPECT_GT(json["device_bytes"], json["needed_bytes"]);
    EXPECT_THAT(told.out, json["fits"]
                              ? ContainsRegex("[0-9.]+ of 85.00 GB needed on the fullest GPU\n")
                              : ContainsRegex("does not fit: the fullest GPU needs [0-9.]+ GB, but it has 20.00 GB"));
    return json["fits"].get<bool>();
  };
  for (const char* command : {"simulate", "memory"}) {
    EXPECT_TRUE(fits(command, "h100"));
    EXPECT_FALSE(fits(command, small_gpu));
    EXPECT_THAT(braid({"plan", command, folder.write("r.yaml", kShortRecipe), "--hardware", "cpu-2"}).out,
                ContainsRegex("[0-9.]+ of 25.27 GB needed by all ranks\n"));
  }
}

TEST(PlanCommand, MemoryOnOtherMachines) {
  const std::string recipe = BRAID_SOURCE_DIR "/recipes/nemotron-vlm-54l-9n.yaml";
  const auto memory = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", "memory", recipe});
    return braid(words);
  };
  EXPECT_THAT(memory({"--hardware", "h100", "--nodes", "17"}).out,
              AllOf(HasSubstr("scaled: language.dp 32 -> 64"), HasSubstr("of 136 ranks")));
  EXPECT_THAT(memory({"--nodes", "17"}).err, HasSubstr("--nodes was given without --hardware"));
  EXPECT_THAT(memory({"--encoder-nodes", "1"}).err, HasSubstr("--encoder-nodes was given without --hardware"));
  EXPECT_THAT(memory({"--rank", "8", "--hardware", "h100", "--nodes", "17"}).out,
              AllOf(HasSubstr("scaled: language.dp 32 -> 64"), HasSubstr("rank 8: ")));
  EXPECT_THAT(memory({"--hardware", "h100", "--encoder-nodes", "2"}).err,
              HasSubstr("--encoder-nodes was given without --nodes"));
  EXPECT_THAT(memory({"--hardware", "h100", "--cpu"}).err, HasSubstr("--cpu was given, but --hardware h100 is a GPU"));
}

TEST(PlanCommand, FullSequencesAreNotDrawn) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  for (const char* command : {"simulate", "search", "memory"}) {
    const auto told = [&](const std::vector<std::string>& flags) {
      std::vector<std::string> words = {"plan", command, recipe, "--full"};
      words.insert(words.end(), flags.begin(), flags.end());
      const Finished run = braid(words);
      EXPECT_EQ(run.exit_code, 2) << run.out;
      return run.err;
    };
    EXPECT_THAT(told({"--steps", "2"}), AllOf(HasSubstr("--full draws no steps, so it cannot be combined with --steps"),
                                              HasSubstr("leave out --full to draw steps")));
    EXPECT_THAT(told({"--steps", "2", "--stats", "stats.json"}), HasSubstr("combined with --stats and --steps"));
  }
}

// The data of a page.
nlohmann::json page_data(const std::string& path) {
  const std::string page = testing::read_file(path);
  const std::size_t begin = page.find('>', page.find("id=data")) + 1;
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

// Of a GPU and of a host, whose ranks share it: what plan memory says is what a search and pages compare.
TEST(PlanCommand, MemoryIsTheSameNumberEverywhere) {
  const TemporaryFolder folder;
  const std::string recipe = folder.write("recipe.yaml", kShortRecipe), html = folder.path() + "/plan.html";
  for (const std::string hardware : {"h100", "cpu-2"}) {
    SCOPED_TRACE(hardware);
    std::vector<std::string> words = {"plan", "memory", recipe, "--full", "--json"};
    if (hardware == "cpu-2") words.emplace_back("--cpu");
    const nlohmann::json memory = nlohmann::json::parse(braid(words).out);
    std::int64_t fullest = 0;
    for (const auto& stage : memory["stages"]) {
      std::int64_t sum =
          stage["outside_bytes"]["nccl"].get<std::int64_t>() + stage["outside_bytes"]["context"].get<std::int64_t>();
      for (const auto& bytes : stage["bytes"]) sum += bytes.get<std::int64_t>();
      EXPECT_EQ(stage["needed_bytes"], sum);
      fullest = std::max(fullest, sum);
    }
    if (hardware == "h100")
      EXPECT_EQ(memory["needed_bytes"], fullest);
    else
      EXPECT_GT(memory["needed_bytes"], fullest);
    const auto same = [&](const nlohmann::json& layout) {
      EXPECT_EQ(layout["needed_bytes"], memory["needed_bytes"]);
      ASSERT_EQ(layout["memory"].size(), memory["stages"].size());
      for (std::size_t i = 0; i < memory["stages"].size(); ++i) {
        EXPECT_EQ(layout["memory"][i]["needed_bytes"], memory["stages"][i]["needed_bytes"]);
        double sum = 0;
        for (const auto& bytes : layout["memory"][i]["bytes"]) sum += bytes.get<double>();
        EXPECT_EQ(sum, layout["memory"][i]["needed_bytes"]);
      }
    };
    // Also if the times are those of drawn steps.
    const Finished simulation = braid({"plan", "simulate", recipe, "--hardware", hardware, "--html", html, "--json"});
    same(page_data(html)["layouts"][0]);
    EXPECT_EQ(nlohmann::json::parse(simulation.out)["device_memory"]["needed_bytes"], memory["needed_bytes"]);
    const Finished search = braid({"plan", "search", recipe, "--full", "--hardware", hardware, "--nodes", "1", "--top",
                                   "1", "--html", html, "--json"});
    EXPECT_EQ(nlohmann::json::parse(search.out)["given"]["memory_bytes"], memory["needed_bytes"]);
    const nlohmann::json page = page_data(html);
    same(page["layouts"][page["baseline"].get<std::size_t>()]);
    EXPECT_EQ(page["memory_is_shared"], hardware == "cpu-2");
  }
}

// The numbers are checked by tests/train/traffic_test.cpp.
TEST(PlanCommand, PlanBytes) {
  TemporaryFolder folder;
  const std::string recipe = folder.write("r.yaml", kShortRecipe);
  const Finished all = braid({"plan", "bytes", recipe, "--data.media.images.max_items", "1"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  // Two microbatches of four samples for the language replica, each with 16 embeddings of 64 floats.
  EXPECT_THAT(all.out,
              AllOf(HasSubstr("one step of 6 ranks"), HasSubstr("rank 0: images["), HasSubstr("rank 2: language["),
                    ContainsRegex("images.embeddings to rank 2 +exchange +2 +32.00 KiB"), HasSubstr("total")));
  EXPECT_THAT(braid({"plan", "bytes", recipe, "--encoder-dp", "1"}).out,
              ContainsRegex("images.embeddings to 2 ranks +exchange"));
  const Finished one = braid({"plan", "bytes", recipe, "--rank", "3", "--json"});
  EXPECT_THAT(one.out, AllOf(HasSubstr(R"("ranks":[{"global_rank":3,)"),
                             HasSubstr(R"({"group":"language.tp","operation":"all_reduce","operations":)"),
                             Not(HasSubstr("exchange"))));
  EXPECT_THAT(braid({"plan", "bytes", recipe, "--rank", "6"}).err,
              HasSubstr("rank 6 is out of range: the world has 6"));
}

TEST(PlanCommand, ModelDescribe) {
  TemporaryFolder folder;
  const Finished list = braid({"model", "describe", "tiny-vlm", "--topology", "tp=2,dp=2,encoder.pp=2"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_THAT(list.out, AllOf(HasSubstr("tiny-vlm in bfloat16"), HasSubstr("tp=2 cp=1 pp=1"),
                              HasSubstr("tp=1 cp=1 pp=2"), HasSubstr("mixer.in_proj.weight")));
  const Finished recipe =
      braid({"model", "describe", "tiny-vlm", "--topology", folder.write("r.yaml", kShortRecipe), "--json"});
  EXPECT_THAT(recipe.out, HasSubstr(R"("name":"language","layout":{"tp":2,)"));
  const Finished wrong = braid({"model", "describe", "tiny-vlm", "--topology", "ttp=2,encodr.tp=2,ep=0,cp"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err,
              AllOf(HasSubstr("4 problems"), HasSubstr("did you mean 'tp'?"), HasSubstr("did you mean 'encoder.tp'?"),
                    HasSubstr("write ep=N"), HasSubstr("write cp=N")));
  EXPECT_THAT(braid({"model", "describe", "tiny-vlm", "--topology", "tp=3"}).err,
              HasSubstr("tiny-vlm.language.kv_heads"));
  const std::string no_tp = folder.write("no_tp.yaml", "topology: {modules: {language: {tp: 0}}}");
  const Finished zero = braid({"model", "describe", "tiny-vlm", "--topology", no_tp});
  EXPECT_EQ(zero.exit_code, 2) << zero.err;
  EXPECT_THAT(zero.err, HasSubstr("topology.modules.language.tp"));
  EXPECT_THAT(braid({"model", "describe", "tinyvlm"}).err, HasSubstr("did you mean 'tiny-vlm'?"));
}

TEST(PlanCommand, ForwardRefusesImpossibleSizes) {
  for (const auto& [size, value] : std::vector<std::pair<std::string, std::string>>{
           {"--tp", "0"}, {"--cp", "0"}, {"--ep", "-2"}, {"--expt-tp", "0"}, {"--pp", "0"}, {"--dp", "1000000"}}) {
    const Finished run = braid({"forward", ".", "--inputs", "i", "--outputs", "o", size, value});
    EXPECT_EQ(run.exit_code, 2) << run.err;
    EXPECT_THAT(run.err, HasSubstr(fmt::format("{} should be a number from 1 to 131072, not '{}'", size, value)));
  }
}

TEST(PlanCommand, EveryShippedRecipeHasAValidSchedule) {
  int recipes = 0;
  for (const auto& file : std::filesystem::directory_iterator(BRAID_SOURCE_DIR "/recipes")) {
    const Finished plan = braid({"plan", "schedule", file.path()});
    EXPECT_EQ(plan.exit_code, 0) << file.path() << plan.err;
    EXPECT_THAT(plan.out, HasSubstr("every send has its receive"));
    ++recipes;
  }
  EXPECT_GE(recipes, 7);
}

// On a terminal stderr shows how far the search is; nothing of it stays.
TEST(PlanCommand, PlanSearchShowsItsProgress) {
  const TemporaryFolder folder;
  const std::string recipe = folder.write("recipe.yaml", kShortRecipe);
  const std::string search = testing::built_program("braid") + " plan search " + recipe +
                             " --nodes 1 --hardware h100 > " + folder.path() + "/out";
  const std::string shown = testing::run_program({"script", "-qec", search, "/dev/null"}).out;
  EXPECT_THAT(shown, AllOf(::testing::StartsWith("\r\x1b[Kcomparing bounds ["), ::testing::EndsWith("\r\x1b[K")));
  EXPECT_THAT(testing::read_file(folder.path() + "/out"), HasSubstr("layouts considered"));
}

}  // namespace
}  // namespace braid
