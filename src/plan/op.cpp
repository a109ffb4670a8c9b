#include "plan/op.h"

#include "base/error.h"

namespace braid {

std::string describe(const Transfer& t, const std::vector<Edge>& edges) {
  const Edge& edge = edges[static_cast<std::size_t>(t.edge)];
  const bool forward = t.kind == Transfer::Activation;
  return fmt::format("the {} of microbatch {} from rank {} to rank {}", forward ? "activation" : "gradient",
                     t.microbatch, forward ? edge.from_rank : edge.to_rank, forward ? edge.to_rank : edge.from_rank);
}

std::string describe(const Op& op, const Topology& topology) {
  constexpr const char* kNames[Op::kKinds] = {"the start of the gather",
                                              "the end of the gather",
                                              "the start of the step",
                                              "the batch",
                                              "forward",
                                              "backward",
                                              "the exchange",
                                              "the start of the reduction",
                                              "the end of the reduction",
                                              "the update"};
  const std::string name = kNames[op.kind];
  if (!op.has_stage()) return name;
  const std::string& module = topology.modules()[static_cast<std::size_t>(op.stage.module)].name;
  if (op.starts_collective() || op.ends_collective())
    return fmt::format("{} of {}, stage {}", name, module, op.stage.index);
  return fmt::format("{} of {}, microbatch {}", name, module, op.microbatch);
}

}  // namespace braid
