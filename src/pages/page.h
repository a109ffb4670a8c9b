// HTML pages that are one file: they need no network, work when they are opened from a disk, and fit light and dark
// screens and paper. Scripts and styles are files of this folder, which are part of the program (pages/assets.h).
#pragma once

#include <string>
#include <string_view>

namespace braid {

// Any bytes as text that cannot end an element or an attribute; control characters become visible.
std::string html_text(std::string_view bytes);

struct Page {
  std::string_view title;
  std::string_view style{};   // in addition to style.css
  std::string_view body{};    // HTML
  std::string_view data{};    // JSON, which the script reads from the element "data"; empty: none
  std::string_view script{};  // runs when all of the page is there; empty: none
};
std::string to_html(const Page& page);

}  // namespace braid
