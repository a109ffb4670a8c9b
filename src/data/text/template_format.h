// Python's ways to put values into a text: str.format, the operator %, and strftime.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "data/text/template_value.h"

namespace braid {

// "{} of {name:>3}".format(...). DataError for attributes of fields, and for a field without an argument.
TemplateText format_braces(const TemplateText& text, const TemplateArguments& arguments);
// "%s of %d" % values.
TemplateText format_percent(const TemplateText& text, const std::vector<TemplateValue>& values);
std::string format_time(const std::string& format, const std::tm& time);

}  // namespace braid
