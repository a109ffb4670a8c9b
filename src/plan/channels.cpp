#include "plan/channels.h"

namespace braid {
namespace {

// Sets of ranks that edges connect: each rank leads, through ranks of its set, to the smallest one.
class ConnectedRanks {
 public:
  void connect(int a, int b) {
    const int one = smallest(a), other = smallest(b);
    towards_smallest_[std::max(one, other)] = std::min(one, other);
  }

  std::vector<std::vector<int>> sets() {
    std::map<int, std::vector<int>> by_smallest;
    for (const auto& [rank, towards] : towards_smallest_) by_smallest[smallest(rank)].push_back(rank);
    std::vector<std::vector<int>> sets;
    for (auto& [first, ranks] : by_smallest) sets.push_back(std::move(ranks));
    return sets;
  }

 private:
  int smallest(int rank) {
    int& towards = towards_smallest_.try_emplace(rank, rank).first->second;
    if (towards != rank) towards = smallest(towards);
    return towards;
  }

  std::map<int, int> towards_smallest_;
};

}  // namespace

Channel channel_of(const Topology& topology, const Edge& edge, Transfer::Kind kind) {
  const Module& module = topology.module(edge.from.module);
  return {kind, edge.from.module,
          edge.crosses_modules() ? Channel::kBridge : edge.from.index % module.dense.size_of("pp")};
}

std::vector<Channel> channels_of(const Topology& topology, const std::vector<Edge>& edges) {
  std::vector<Channel> channels;
  for (const auto kind : {Transfer::Activation, Transfer::Gradient})
    for (const Edge& edge : edges) channels.push_back(channel_of(topology, edge, kind));
  return channels;
}

std::string key_of(const Channel& channel) {
  const bool forward = channel.kind == Transfer::Activation;
  if (channel.hop == Channel::kBridge) return forward ? "embeddings" : "embedding-gradients";
  return fmt::format("{}-{}", forward ? "activations" : "activation-gradients", channel.hop);
}

std::vector<GroupSpec> make_channel_groups(const Topology& topology) {
  std::map<Channel, ConnectedRanks> channels;
  for (const Edge& edge : make_edges(topology))
    for (const auto kind : {Transfer::Activation, Transfer::Gradient})
      if (edge.from_rank != edge.to_rank)
        channels[channel_of(topology, edge, kind)].connect(edge.from_rank, edge.to_rank);
  std::vector<GroupSpec> groups;
  for (auto& [channel, connected] : channels) {
    const std::string& module = topology.module(channel.module).name;
    for (std::vector<int>& ranks : connected.sets())
      groups.push_back({fmt::format("{}.{}", module, key_of(channel)), std::move(ranks)});
  }
  return groups;
}

}  // namespace braid
