#pragma once

#include <string>
#include <vector>

namespace braid {

// Slurm's host list syntax, "pool0-[0012-0015,0020],login1", expanded in order; zero padding is kept.
// Throws ConfigError when it is malformed or names more than 65536 hosts.
std::vector<std::string> expand_nodelist(const std::string& text);

// Slurm's per-node task counts, "8(x4),3", expanded: 8 8 8 8 3.
std::vector<int> expand_tasks_per_node(const std::string& text);

}  // namespace braid
