// Lines that name an error, and are none.
#pragma once

#include <string_view>

#include "cluster/doctor/events/signs.h"
#include "cluster/doctor/lines/line_marks.h"

namespace braid {

// Whether a logger marks it as information or, by a letter, as a warning.
bool is_information(const LineMarks& marks);

// A warning, a frame, something that is tried again, prose about the error.
bool is_noise(Sign sign, const LineMarks& marks);

// Errors that programs catch, report and go on after, where no traceback shows that they did not. A C++ exception that
// nobody caught is none of these.
bool is_often_outlived(Sign sign, std::string_view body);

}  // namespace braid
