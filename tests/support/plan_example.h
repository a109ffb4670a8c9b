// A plan to test pages with: layouts of two modules on 16 ranks, with made-up but consistent numbers.
#pragma once

#include <nlohmann/json.hpp>

namespace braid::testing {

nlohmann::ordered_json example_plan();  // see predict/plan_page.h

}  // namespace braid::testing
