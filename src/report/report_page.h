// Runs as a page, and as text.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "report/run_record.h"

namespace braid {

// At most about this many points; those that are left out lie between the least and the greatest of their neighbours.
Curve thinned(const Curve& curve, std::size_t most);

nlohmann::ordered_json report_json(const std::vector<RunRecord>& runs);  // what the page shows
std::string report_page(const std::vector<RunRecord>& runs);             // HTML

std::string report_text(const std::vector<RunRecord>& runs);

}  // namespace braid
