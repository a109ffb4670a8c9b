#include "models/providers.h"

namespace braid {

// The same as the 20-layer model, with more layers.
Provider nemotron_vlm_54l() {
  Provider p = nemotron_vlm_20l();
  p.name = "nemotron-vlm-54l";
  std::get<HybridLmConfig>(p.language).pattern = "MEMEM*EMEM*EMEM*EMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEME";
  return p;
}

}  // namespace braid
