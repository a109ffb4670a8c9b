// The operators of chat templates, with Python's meaning.
#pragma once

#include <string>

#include "data/text/template_builtins.h"
#include "data/text/template_value.h"

namespace braid {

// All binary operators except `and` and `or`. DataError for unsuitable values.
TemplateValue apply_operator(const std::string& symbol, const TemplateValue& left, const TemplateValue& right,
                             TemplateBuiltins& builtins, TemplateHeap& heap, TemplateBudget& budget);
TemplateValue negative(const TemplateValue& value);

}  // namespace braid
