#pragma once

#include <string>
#include <vector>

namespace braid {

// Rows under a header, columns padded to their widest cell, two spaces apart.
std::string format_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

}  // namespace braid
