// The operators of chat templates, with Python's meaning.
#pragma once

#include <string>

#include "text/template_builtins.h"
#include "text/template_value.h"

namespace braid {

// All binary operators except `and` and `or`. DataError for unsuitable values.
TemplateValue apply_operator(const std::string& symbol, const TemplateValue& left, const TemplateValue& right,
                             TemplateBuiltins& builtins, TemplateHeap& heap, TemplateBudget& budget);
TemplateValue negative(const TemplateValue& value);

}  // namespace braid
