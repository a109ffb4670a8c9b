#include "cluster/doctor/report.h"
#include <nlohmann/json.hpp>
#include "base/terminal.h"
#include "base/utf8.h"

namespace braid {

namespace {

constexpr std::size_t kWidth = 79, kClipped = 220;

// Of a long text the part around its focus.
std::string clipped(const std::string& text, std::size_t most, std::size_t focus = 0) {
  const std::string clean = clean_text(text);
  if (clean.size() <= most) return clean;
  const auto back_to_character = [&](std::size_t at) {
    while (at > 0 && at < clean.size() && (static_cast<unsigned char>(clean[at]) & 0xc0) == 0x80) --at;
    return at;
  };
  const bool is_late = focus > most * 2 / 3;
  const std::size_t begin = back_to_character(is_late ? std::min(focus - most / 3, clean.size() - most) : 0);
  const std::size_t end = back_to_character(std::min(begin + most, clean.size()));
  return (begin > 0 ? "... " : "") + clean.substr(begin, end - begin) + (end < clean.size() ? " ..." : "");
}

// A paragraph in lines that fit a terminal, each behind `indent`.
std::string wrapped(const std::string& text, const std::string& indent = "") {
  return indent + folded(text, kWidth - indent.size(), indent) + "\n";
}

}  // namespace

std::string to_text(const Diagnosis& diagnosis) {
  std::string text =
      wrapped(fmt::format("{}: {}", text_of(diagnosis.cause).slug, clipped(diagnosis.explanation, 1500)));
  const std::string rank = diagnosis.first_rank ? fmt::format("rank {}", *diagnosis.first_rank) : "";
  const std::string host = clean_text(diagnosis.first_host);
  const char* const between = host.empty() ? "" : rank.empty() ? "host " : " on ";
  if (!(rank + host).empty()) text += fmt::format("\nfirst to fail: {}{}{}\n", rank, between, host);
  if (!diagnosis.evidence.empty()) text += "\nevidence:\n";
  for (const Evidence& evidence : diagnosis.evidence)
    text += fmt::format("  {}:{}: {}\n", clean_text(evidence.file), evidence.line,
                        clipped(evidence.text, kClipped, evidence.focus));
  if (!diagnosis.cascade.empty()) text += "\n" + wrapped(diagnosis.cascade);
  if (!diagnosis.fix.empty()) text += "\nfix:\n" + wrapped(diagnosis.fix, "  ");
  return text;
}

std::string to_json(const Diagnosis& diagnosis) {
  using Json = nlohmann::ordered_json;
  const auto or_null = [](bool is_known, auto value) { return is_known ? Json(value) : Json(); };
  Json evidence = Json::array();
  for (const Evidence& e : diagnosis.evidence)
    evidence.push_back({{"file", clean_text(e.file)}, {"line", e.line}, {"text", clipped(e.text, 2000, e.focus)}});
  const std::string between = diagnosis.cascade.empty() ? "" : " ";
  const Json json = {{"cause", text_of(diagnosis.cause).slug},
                     {"first_rank", or_null(diagnosis.first_rank.has_value(), diagnosis.first_rank.value_or(0))},
                     {"first_host", or_null(!diagnosis.first_host.empty(), clean_text(diagnosis.first_host))},
                     {"exit_code", or_null(diagnosis.exit_code.has_value(), diagnosis.exit_code.value_or(0))},
                     {"evidence", evidence},
                     {"explanation", clean_text(diagnosis.explanation + between + diagnosis.cascade)},
                     {"fix", clean_text(diagnosis.fix)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace braid
