#include "inspect/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/utf8.h"

namespace braid {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2430; --soft: #5d6b7d; --line: #dde2e9;
  --bar: #3b7dd8; --hit: #bfe8c8; --hit-ink: #0c4a1e; --media: #dcd3f7; --media-ink: #3d2a85; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1b212a; --ink: #e4e9f0; --soft: #97a3b4;
  --line: #303a47; --bar: #6aa5f4; --hit: #1e4d2c; --hit-ink: #c9f5d5; --media: #3b3070; --media-ink: #e2daff;
  --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .8rem; }
h3 { font-size: 1rem; margin: 0 0 .7rem; overflow-wrap: anywhere; }
small, .axis, figcaption span, p { color: var(--soft); font-weight: normal; }
.cards, .charts { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); }
.charts { grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); }
.card, figure, article, .scroll { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .8rem 1rem; margin: 0; }
.card b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: .85rem; }
figcaption { display: flex; justify-content: space-between; gap: 1rem; font-size: .85rem; margin-bottom: .5rem; }
figure svg { width: 100%; height: 6rem; fill: var(--bar); display: block; border-bottom: 1px solid var(--line); }
figure rect:hover { fill: var(--ink); }
.axis { display: flex; justify-content: space-between; font-size: .78rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 600; }
tr:last-child td { border-bottom: 0; }
article { margin-bottom: .9rem; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; margin-bottom: .8rem; }
.picture { flex: 0 1 20rem; }
.picture p { margin: .35rem 0 0; font-size: .8rem; }
.frame { position: relative; line-height: 0; border-radius: .35rem; overflow: hidden; }
.frame img { width: 100%; }
.small { image-rendering: pixelated; }
.frame svg { position: absolute; inset: 0; width: 100%; height: 100%; fill: none; filter: drop-shadow(0 0 1px #000); }
.frame path { vector-effect: non-scaling-stroke; stroke: #fff; stroke-opacity: .8; }
.tiles path { stroke-width: 3px; }
.chat { white-space: pre-wrap; overflow-wrap: anywhere; font: 13.5px/1.7 ui-monospace, monospace; max-height: 24rem;
  overflow-y: auto; }
.chat span:hover { outline: 1px solid var(--bar); }
.t { background: var(--hit); color: var(--hit-ink); border-radius: .2rem; }
.e { background: var(--media); color: var(--media-ink); border-radius: .3rem; padding: .05rem .4rem; }
.bad { color: var(--bad); }
.answers { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); }
.answers article { margin: 0; }
.answers dl { display: grid; grid-template-columns: auto 1fr; gap: .1rem .7rem; margin: 0; }
.answers dt { color: var(--soft); }
.answers dd { margin: 0; overflow-wrap: anywhere; }
)";

constexpr int kBars = 32, kWidth = 320, kHeight = 96;

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
  return fmt::format(
      "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width\">"
      "<title>{0}</title><style>{1}</style></head><body>\n<h1>{0}</h1>\n{2}</body></html>\n",
      html_text(title), kStyle, body);
}

}  // namespace braid
