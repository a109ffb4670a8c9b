// Pieces of HTML that need no other files.
#pragma once

#include <string>
#include <string_view>

#include "data/inspect/distribution.h"
#include "pages/page.h"

namespace braid {

std::string base64(std::string_view bytes);

// A figure with one bar per range of values. The values under the pointer are shown by the browser.
std::string html_histogram(std::string_view title, std::string_view unit, const Distribution& values);

// A number with its name.
std::string html_card(std::string_view value, std::string_view name);

// A whole page about samples. `body` is HTML.
std::string html_page(std::string_view title, std::string_view body);

}  // namespace braid
