// The page itself is tested in a browser: tests/pages/plan_test.py.
#include "predict/plan_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/plan_example.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PlanLayout layout(double seconds, double bytes, bool fits = true) {
  return {.iteration_s = seconds, .needed_bytes = bytes, .fits = fits};
}

TEST(PlanPage, TheFrontHasWhatNoOtherLayoutBeats) {
  std::vector<PlanLayout> layouts = {layout(3, 10),        layout(2, 20), layout(2, 25), layout(2.5, 20),
                                     layout(1, 90, false), layout(4, 5),  layout(3, 10)};
  mark_front(layouts);
  std::vector<bool> on_front;
  for (const PlanLayout& each : layouts) on_front.push_back(each.on_front);
  EXPECT_THAT(on_front, ElementsAre(true, true, false, false, false, true, false));
}

TEST(PlanPage, TheJsonHasWhatThePlanHas) {
  const PlanPage page = testing::example_plan();
  const auto json = to_json(page);
  EXPECT_EQ(json["hardware_source"], "datasheet");
  ASSERT_EQ(json["layouts"].size(), page.layouts.size());
  const auto& first = json["layouts"][0];
  EXPECT_EQ(first["iteration_s"], page.layouts[0].iteration_s);
  EXPECT_EQ(first["settings"]["model.recompute"], "[]");
  EXPECT_EQ(first["memory"][1]["bytes"]["parameters"], page.layouts[0].memory[1].bytes[0].second);
  const auto& span = first["timeline"]["spans"][1];
  const PlanSpan& expected = page.layouts[0].timeline.spans[1];
  EXPECT_EQ(first["timeline"]["texts"][span[2].get<std::size_t>()], expected.kind);
  EXPECT_EQ(span[4], expected.end_s);
  EXPECT_TRUE(json["layouts"][5]["timeline"].is_null());
}

TEST(PlanPage, WhatTheBrowserCannotShowIsRefused) {
  PlanPage page = testing::example_plan();
  page.layouts[0].timeline.spans[0].track = 99;
  EXPECT_THROW(plan_html(page), std::exception);
  page = testing::example_plan();
  page.best = 1000;
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
