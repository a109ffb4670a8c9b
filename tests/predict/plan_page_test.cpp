// The page itself is tested in a browser: tests/pages/plan_test.py.
#include "predict/plan_page.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "predict/memory.h"
#include "support/plan_example.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Json = nlohmann::ordered_json;

Json layout(double seconds, double bytes, bool fits = true) {
  return {{"iteration_s", seconds}, {"needed_bytes", bytes}, {"fits", fits}};
}

TEST(PlanPage, TheFrontHasWhatNoOtherLayoutBeats) {
  Json layouts = {layout(3, 10),        layout(2, 20), layout(2, 25), layout(2.5, 20),
                  layout(1, 90, false), layout(4, 5),  layout(3, 10)};
  mark_front(layouts);
  std::vector<bool> on_front;
  for (const Json& each : layouts) on_front.push_back(each["on_front"]);
  EXPECT_THAT(on_front, ElementsAre(true, true, false, false, false, true, false));
}

TEST(PlanPage, HasWhatASimulationPredicts) {
  const Recipe recipe = parse_recipe(
      "topology: {modules: {images: {kind: encoder}, language: {kind: language}}}\n"
      "model: {provider: tiny-vlm, dtype: float32}\ntrain: {micro_batch: 1, global_batch: 4}\n");
  const HardwareProfile hardware = load_hardware("h100");
  const SimulationAndStep simulated = simulate_and_keep(recipe, hardware);
  const Topology topology(recipe.topology, workload_of(recipe));
  const MemoryPrediction memory = predict_memory(recipe, topology, {full_step(recipe, topology)});
  const Json page = page_of({"tiny.yaml", recipe, hardware, "full"}, simulated);
  EXPECT_EQ(page["hardware_source"], "datasheet");
  ASSERT_EQ(page["layouts"].size(), 1);
  const Json& first = page["layouts"][0];
  EXPECT_EQ(first["iteration_s"], simulated.simulation.iteration_s);
  EXPECT_EQ(first["settings"]["model.recompute"], Json::array());
  EXPECT_EQ(first["memory"][1]["bytes"]["parameters"],
            memory.stages[1].rank.all_modules()[static_cast<std::size_t>(MemoryKind::Parameters)]);
  // The last span of the track of rank 0 ends with its last op.
  const Json& spans = first["timeline"]["spans"];
  double end = 0;
  for (const Json& span : spans)
    if (span[0] == 0) end = std::max(end, span[4].get<double>());
  EXPECT_EQ(end, simulated.step.play.ranks[0].back().end);
  const auto text = [&](const Json& index) { return first["timeline"]["texts"][index.get<std::size_t>()]; };
  const auto is_forward = [&](const Json& span) { return text(span[2]) == "images forward"; };
  EXPECT_EQ(std::ranges::count_if(spans, is_forward), 4);
  EXPECT_TRUE(testing::example_plan()["layouts"][5]["timeline"].is_null());
}

TEST(PlanPage, WhatTheBrowserCannotShowIsRefused) {
  Json page = testing::example_plan();
  page["layouts"][0]["timeline"]["spans"][0][0] = 99;
  EXPECT_THROW(plan_html(page), std::exception);
  page = testing::example_plan();
  page["best"] = 1000;
  EXPECT_THROW(plan_html(page), std::exception);
}

TEST(PlanPage, IsOneFile) {
  const std::string html = plan_html(testing::example_plan());
  EXPECT_THAT(html, HasSubstr("<title>Plan for recipes/example.yaml</title>"));
  for (const char* outside : {"<link", "src=", "@import", "https://"})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
}

}  // namespace
}  // namespace braid
