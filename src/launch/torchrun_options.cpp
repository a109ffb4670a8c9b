#include "launch/torchrun_options.h"

#include <algorithm>

namespace braid {

const std::vector<TorchrunOption>& torchrun_options() {
  using Option = TorchrunOption;
  static const std::vector<Option> options = {
      {"help", false, Option::Comfort, 'h'},
      {"nnodes", true, Option::World},
      {"nproc-per-node", true, Option::World},
      {"node-rank", true, Option::World},
      {"master-addr", true, Option::World},
      {"master-port", true, Option::World},
      {"standalone", false, Option::World},
      {"rdzv-backend", true, Option::World},
      {"rdzv-endpoint", true, Option::World},
      {"rdzv-id", true, Option::World},
      {"rdzv-conf", true, Option::World},
      {"local-addr", true, Option::World},
      {"module", false, Option::Program, 'm'},
      {"no-python", false, Option::Program},
      {"run-path", false, Option::Program},
      {"use-env", false, Option::Program},  // of torch.distributed.launch only
      {"virtual-local-rank", false, Option::Program},
      {"max-restarts", true, Option::Comfort},
      {"monitor-interval", true, Option::Comfort},
      {"start-method", true, Option::Comfort},
      {"event-log-handler", true, Option::Comfort},
      {"role", true, Option::Comfort},
      {"log-dir", true, Option::Comfort},
      {"redirects", true, Option::Comfort, 'r'},
      {"tee", true, Option::Comfort, 't'},
      {"local-ranks-filter", true, Option::Comfort},
      {"duplicate-stdout-filters", true, Option::Comfort},
      {"duplicate-stderr-filters", true, Option::Comfort},
      {"logs-specs", true, Option::Comfort},
      {"numa-binding", true, Option::Comfort},
      {"signals-to-handle", true, Option::Comfort},
  };
  return options;
}

const TorchrunOption* find_torchrun_option(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  const TorchrunOption* found = nullptr;
  for (const TorchrunOption& option : torchrun_options()) {
    const std::string_view known = option.name;
    if (known == dashed) return &option;
    if (dashed.empty() || !known.starts_with(dashed)) continue;
    if (found) return nullptr;
    found = &option;
  }
  return found;
}

const TorchrunOption* find_torchrun_option(char letter) {
  for (const TorchrunOption& option : torchrun_options())
    if (option.letter && option.letter == letter) return &option;
  return nullptr;
}

}  // namespace braid
