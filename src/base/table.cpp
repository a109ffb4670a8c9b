#include "base/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace braid {

std::string format_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(header.size(), 0);
  auto widen = [&](const std::vector<std::string>& row) {
    for (std::size_t i = 0; i < row.size(); ++i) widths.at(i) = std::max(widths.at(i), row[i].size());
  };
  widen(header);
  for (const auto& row : rows) widen(row);

  std::string text;
  auto print = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}", row[i], widths[i] + 2);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  print(header);
  for (const auto& row : rows) print(row);
  return text;
}

}  // namespace braid
