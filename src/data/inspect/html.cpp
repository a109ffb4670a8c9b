#include "data/inspect/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "pages/assets.h"

namespace braid {
namespace {

constexpr int kBars = 32, kWidth = 320, kHeight = 96;

}  // namespace

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

std::string html_histogram(std::string_view title, std::string_view unit, const Distribution& values) {
  if (values.count() == 0) return "";
  const auto bars = values.bars(kBars);
  std::int64_t most = 1;
  for (const Distribution::Bar& bar : bars) most = std::max(most, bar.count);
  const double step = static_cast<double>(kWidth) / static_cast<double>(bars.size());
  std::string drawn;
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double height = kHeight * static_cast<double>(bars[i].count) / static_cast<double>(most);
    const std::string range = bars[i].first == bars[i].last ? fmt::format("{}", bars[i].first)
                                                            : fmt::format("{} to {}", bars[i].first, bars[i].last);
    drawn += fmt::format(
        R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{} {}: {}</title></rect>)",
        step * static_cast<double>(i), kHeight - height, std::max(step - 1, 0.5), height, range, unit, bars[i].count);
  }
  return fmt::format(R"(<figure><figcaption><b>{}</b><span>median {} · mean {:.1f} · p90 {}</span></figcaption>)"
                     R"(<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img">{}</svg>)"
                     "<div class=axis><span>{}</span><span>{}</span></div></figure>\n",
                     html_text(title), values.quantile(0.5), values.mean(), values.quantile(0.9), kWidth, kHeight,
                     drawn, bars.front().first, bars.back().last);
}

std::string html_card(std::string_view value, std::string_view name) {
  return fmt::format("<div class=card><b>{}</b><span>{}</span></div>", html_text(value), html_text(name));
}

std::string html_page(std::string_view title, std::string_view body) {
  return to_html({.title = title, .style = kSamplesCss, .body = body});
}

}  // namespace braid
