#include "cluster/megatron/torchrun_options.h"

#include <algorithm>

namespace braid {

const std::vector<TorchrunOption>& torchrun_options() {
  using Option = TorchrunOption;
  static const std::vector<Option> options = {
      {"help", false, Option::Own, 'h'},
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
      {"max-restarts", true, Option::Own},
      {"monitor-interval", true, Option::Own},
      {"start-method", true, Option::Own},
      {"event-log-handler", true, Option::Own},
      {"role", true, Option::Own},
      {"log-dir", true, Option::Own},
      {"redirects", true, Option::Own, 'r'},
      {"tee", true, Option::Own, 't'},
      {"local-ranks-filter", true, Option::Own},
      {"duplicate-stdout-filters", true, Option::Own},
      {"duplicate-stderr-filters", true, Option::Own},
      {"logs-specs", true, Option::Own},
      {"numa-binding", true, Option::Own},
      {"signals-to-handle", true, Option::Own},
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

const TorchrunOption* exact_torchrun_option(std::string_view name) {
  const TorchrunOption* option = find_torchrun_option(name);
  return option && std::string_view(option->name).size() == name.size() ? option : nullptr;
}

const TorchrunOption* find_torchrun_option(char letter) {
  for (const TorchrunOption& option : torchrun_options())
    if (option.letter && option.letter == letter) return &option;
  return nullptr;
}

}  // namespace braid
