// The projector after an encoder, as data. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

namespace braid {

struct ProjectorConfig {
  std::string kind = "affine";                  // affine | mlp
  int input = 256, hidden = 1024, output = 64;  // hidden: of the mlp
  double init_std = 0.02;
};

void describe(Fields& fields, ProjectorConfig& config);
// On the last of the encoder's `stages`.
std::vector<ParamSpec> declare_parameters(const ProjectorConfig& config, int stages = 1);
std::vector<Problem> validate(const ProjectorConfig& config, const LayoutSizes& layout, const std::string& where);

}  // namespace braid
