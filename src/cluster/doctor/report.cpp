#include "cluster/doctor/report.h"

#include <fmt/format.h>
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
std::string wrapped(const std::string& text, const std::string& indent) {
  return indent + folded(text, kWidth - indent.size(), indent) + "\n";
}

std::string who(const Diagnosis& diagnosis) {
  std::string text;
  if (diagnosis.first_rank) text = fmt::format("rank {}", *diagnosis.first_rank);
  if (!diagnosis.first_host.empty())
    text += text.empty() ? "host " + diagnosis.first_host : " on " + diagnosis.first_host;
  return clean_text(text);
}

}  // namespace

std::string to_text(const Diagnosis& diagnosis) {
  const std::string explanation = clipped(diagnosis.explanation, 1500);
  std::string text = wrapped(fmt::format("{}: {}", text_of(diagnosis.cause).slug, explanation), "");
  if (const std::string first = who(diagnosis); !first.empty()) text += fmt::format("\nfirst to fail: {}\n", first);
  if (!diagnosis.evidence.empty()) text += "\nevidence:\n";
  for (const Evidence& evidence : diagnosis.evidence)
    text += fmt::format("  {}:{}: {}\n", clean_text(evidence.file), evidence.line,
                        clipped(evidence.text, kClipped, evidence.focus));
  if (!diagnosis.cascade.empty()) text += "\n" + wrapped(diagnosis.cascade, "");
  if (!diagnosis.fix.empty()) text += "\nfix:\n" + wrapped(diagnosis.fix, "  ");
  return text;
}

std::string to_json(const Diagnosis& diagnosis) {
  nlohmann::ordered_json json;
  json["cause"] = text_of(diagnosis.cause).slug;
  json["first_rank"] = diagnosis.first_rank ? nlohmann::ordered_json(*diagnosis.first_rank) : nlohmann::ordered_json();
  json["first_host"] = diagnosis.first_host.empty() ? nlohmann::ordered_json()
                                                    : nlohmann::ordered_json(clean_text(diagnosis.first_host));
  json["exit_code"] = diagnosis.exit_code ? nlohmann::ordered_json(*diagnosis.exit_code) : nlohmann::ordered_json();
  json["evidence"] = nlohmann::ordered_json::array();
  for (const Evidence& evidence : diagnosis.evidence)
    json["evidence"].push_back({{"file", clean_text(evidence.file)},
                                {"line", evidence.line},
                                {"text", clipped(evidence.text, 2000, evidence.focus)}});
  json["explanation"] = clean_text(diagnosis.explanation + (diagnosis.cascade.empty() ? "" : " " + diagnosis.cascade));
  json["fix"] = clean_text(diagnosis.fix);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int verdict_code(const Diagnosis& diagnosis) { return diagnosis.cause == Cause::Unknown ? 1 : 0; }

}  // namespace braid
