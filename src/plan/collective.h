// A collective as it is counted on paper, before any process exists. models/ and optim/ list those of their code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace braid {

struct Module;

struct Collective {
  std::string group;            // key of a group of the module: "tp", "dp-cp"
  std::string operation;        // as Progress counts it: "all_gather"
  std::int64_t bytes = 0;       // as Meeting::bytes (comm/progress.h)
  std::int64_t operations = 1;  // that carry these bytes together
  bool beside = false;          // it runs during a product that does not need its result

  bool operator==(const Collective&) const = default;
};

using Collectives = std::vector<Collective>;

int group_size(const Module& module, const std::string& key);

}  // namespace braid
