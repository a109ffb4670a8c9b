#include "pages/page.h"
#include <fmt/ranges.h>
#include "base/utf8.h"

namespace braid {
namespace {

// Nothing is loaded from anywhere, whatever the page contains.
constexpr const char* kOnlyInline =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

// JSON in which no text can end the element that it is in.
std::string data_element(std::string_view json) {
  std::string out = "<script type=\"application/json\" id=data>";
  for (const char c : json)
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  return out + "</script>\n";
}

std::string page_of(std::string_view title, std::string_view more_style, std::string_view contents) {
  return fmt::format(
      "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
      "<meta name=viewport content=\"width=device-width, initial-scale=1\">"
      "<meta http-equiv=Content-Security-Policy content=\"{4}\">"
      "<title>{0}</title>\n<style>\n{1}{2}</style></head><body>\n<h1>{0}</h1>\n{3}</body></html>\n",
      html_text(title), kStyleCss, more_style, contents, kOnlyInline);
}

}  // namespace

std::string html_text(std::string_view bytes) {
  const std::string text = with_valid_utf8(bytes);
  std::string out;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (constexpr std::string_view kSpecial = "&<>\"'"; kSpecial.find(c) != kSpecial.npos) {
      constexpr const char* kNames[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
      out += kNames[kSpecial.find(c)];
    } else if ((code < 0x20 && c != '\n' && c != '\t') || code == 0x7f) {
      out += fmt::format("\\x{:02x}", code);
    } else {
      out += c;
    }
  }
  return out;
}

std::string html_page(std::string_view title, std::string_view body) { return page_of(title, "", body); }

std::string script_page(std::string_view title, std::string_view data, std::string_view scripts) {
  const std::string contents = fmt::format(
      "<main id=page></main>\n{}"
      "<noscript><p class=bad>This page draws its contents with JavaScript, which is switched off.</p></noscript>\n"
      "<script>\n'use strict';\n{}{}{}</script>\n",
      data_element(data), kElementsJs, kChartsJs, scripts);
  return page_of(title, kChartsCss, contents);
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = i; j < i + 3; ++j)
      group = group << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u);
    for (std::size_t digit = 0; digit < 4; ++digit)
      out += i + digit > bytes.size() ? '=' : kDigits[group >> (18 - 6 * digit) & 63];
  }
  return out;
}

std::string html_card(std::string_view value, std::string_view name) {
  return fmt::format("<div class=card><b>{}</b><span>{}</span></div>", html_text(value), html_text(name));
}

std::string html_table(const HtmlRow& headings, std::span<const HtmlRow> rows) {
  const auto row_of = [](const char* tag, const HtmlRow& cells) {
    return cells.empty() ? "" : fmt::format("<tr><{0}>{1}</tr>", tag, fmt::join(cells, fmt::format("<{}>", tag)));
  };
  std::string table = row_of("th", headings);
  for (const HtmlRow& row : rows) table += row_of("td", row);
  return "<div class=scroll><table>" + table + "</table></div>\n";
}

std::string html_histogram(std::string_view title, std::string_view note, std::string_view unit,
                           std::span<const HistogramBar> bars) {
  if (bars.empty()) return "";
  constexpr int kWidth = 320, kHeight = 96;
  std::int64_t most = 1;
  for (const HistogramBar& bar : bars) most = std::max(most, bar.count);
  const double step = static_cast<double>(kWidth) / static_cast<double>(bars.size());
  std::string rects;
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double height = kHeight * static_cast<double>(bars[i].count) / static_cast<double>(most);
    const std::string range = bars[i].first == bars[i].last ? fmt::format("{}", bars[i].first)
                                                            : fmt::format("{} to {}", bars[i].first, bars[i].last);
    rects += fmt::format(
        R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{} {}: {}</title></rect>)",
        step * static_cast<double>(i), kHeight - height, std::max(step - 1, 0.5), height, range, unit, bars[i].count);
  }
  return fmt::format(R"(<figure class=histogram><figcaption><b>{}</b><span>{}</span></figcaption>)"
                     R"(<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img">{}</svg>)"
                     "<div class=axis><span>{}</span><span>{}</span></div></figure>\n",
                     html_text(title), note, kWidth, kHeight, rects, bars.front().first, bars.back().last);
}

}  // namespace braid
