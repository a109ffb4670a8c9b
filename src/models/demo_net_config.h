#pragma once

#include "base/config.h"

namespace braid {

struct DemoNetConfig {
  int features = 32;  // width of a sample, and of what the encoder sends to the language module
  int hidden = 64;    // width inside each module, split over its tp ranks
  bool float64 = false;
  int num_experts = 0;  // per MoE layer; planning checks ep against it
};

inline void describe(Fields& f, DemoNetConfig& c) {
  f.field("features", c.features, "width of a sample and of the encoder's output");
  f.field("hidden", c.hidden, "width inside each module, split over its tp ranks");
  f.field("num_experts", c.num_experts, "experts per MoE layer, which ep must divide");
  f.field("float64", c.float64, "compute in double precision");
}

}  // namespace braid
