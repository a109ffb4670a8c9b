#include "pages/page.h"

#include <fmt/format.h>

#include "base/utf8.h"
#include "pages/assets.h"

namespace braid {
namespace {

// Nothing is loaded from anywhere, whatever the page contains.
constexpr const char* kOnlyInline =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

// JSON in which no text can end the element that it is in.
std::string data_element(std::string_view json) {
  if (json.empty()) return "";
  std::string out = "<script type=\"application/json\" id=data>";
  for (const char c : json)
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  return out + "</script>\n";
}

std::string script_element(std::string_view script) {
  if (script.empty()) return "";
  return fmt::format(
      "<noscript><p class=bad>This page draws its contents with JavaScript, which is switched off.</p></noscript>\n"
      "<script>\n'use strict';\n{}</script>\n",
      script);
}

}  // namespace

std::string html_text(std::string_view bytes) {
  const std::string text = with_valid_utf8(bytes);
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '\n':
      case '\t':
        out += c;
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
          out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        else
          out += c;
    }
  }
  return out;
}

std::string to_html(const Page& page) {
  return fmt::format(
      "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
      "<meta name=viewport content=\"width=device-width, initial-scale=1\">"
      "<meta http-equiv=Content-Security-Policy content=\"{5}\">"
      "<title>{0}</title>\n<style>\n{1}{2}</style></head><body>\n<h1>{0}</h1>\n{3}{4}</body></html>\n",
      html_text(page.title), kStyleCss, page.style, page.body, data_element(page.data) + script_element(page.script),
      kOnlyInline);
}

}  // namespace braid
