// A run from its files.
#pragma once

#include <string>

#include "report/run_files.h"
#include "report/run_record.h"

namespace braid {

// Reads all of them; what is damaged or cut off is a warning. Each curve comes from the first source that has it: the
// metrics file has every iteration, event files and the log have one per interval. Folders that the recipe names are
// read, too, where they exist. `plan_path`: a plan's JSON, instead of plan.json in the folder; ConfigError when it
// cannot be read.
RunRecord read_run(RunFiles files, const std::string& plan_path = "");

}  // namespace braid
