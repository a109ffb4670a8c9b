// A plan to test pages with: layouts of two modules on 16 ranks, with made-up but consistent numbers.
#pragma once

#include "predict/plan_page.h"

namespace braid::testing {

PlanPage example_plan();

}  // namespace braid::testing
