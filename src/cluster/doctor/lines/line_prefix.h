// Reads what stands before the text of a log line.
#pragma once

#include <string_view>

#include "cluster/doctor/lines/line_marks.h"

namespace braid {

// Looks at the prefix only, so it is cheap enough to call for each line.
LineMarks marks_of(std::string_view line);

// Lines of Slurm's own tools and of `bash -x`: they say nothing about whether the program ever spoke.
bool is_of_the_scheduler(std::string_view text);

}  // namespace braid
