// The process groups over which tensors travel from stage to stage.
//
// The operations of one process group run in the order in which a rank starts them: a receive that waits for its sender
// holds back everything that the rank starts after it in the same group. So every route has two groups of its own, its
// channels: one for activations and one for the gradients that go back. The routes are those from an encoder to the
// language model and, within a module, those from one pipeline rank to the next. A transfer waits only for earlier ones
// of its own channel.
#pragma once

#include <compare>
#include "plan/op.h"

namespace braid {

struct Channel {
  static constexpr int kBridge = -1;

  Transfer::Kind kind;
  int module;  // whose output it carries, or the gradient of that output
  int hop;     // kBridge, or the pp coordinate of the rank that sends activations over it
  auto operator<=>(const Channel&) const = default;
};

Channel channel_of(const Topology& topology, const Edge& edge, Transfer::Kind kind);
std::vector<Channel> channels_of(const Topology& topology, const std::vector<Edge>& edges);  // by kind, then edge
// The second part of its groups' name: "embeddings", "embedding-gradients", "activations-0", "activation-gradients-0".
std::string key_of(const Channel& channel);

// The groups of all channels in creation order, which comes after topology.groups(). A rank is in at most one group of
// a name, with all ranks that edges of the channel connect it to.
std::vector<GroupSpec> make_channel_groups(const Topology& topology);

}  // namespace braid
