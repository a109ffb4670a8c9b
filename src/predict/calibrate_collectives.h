// Measures collectives among the ranks of this host, called as training calls them. No libtorch here.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "predict/fit_collectives.h"

namespace braid {

class World;

// Measures each case. A rank computes a small layer before each call, so that its threads fall asleep and wake up, and
// caches are as cold after a call as in training; that layer's own time does not count. Every rank of `world` must call
// this; it goes through all cases `rounds` times, at least once. `few` is valid only on the first `cores` ranks.
// `after_round` is also called after the warm-up round.
CollectiveRuns measure_collectives(
    World& world, int cores, const std::vector<CollectiveCase>& cases, int rounds,
    const std::function<void()>& after_round = [] {});

// Runs in each rank that the launcher started: measures collective_cases(); rank 0 writes the result to `path`.
void measure_collectives_as_rank(const std::string& path, int cores);
CollectiveTimes read_collectives(const std::string& path);

// Scales the calls' times to the operator speeds in `profile`, since the machine's speed may have changed in between.
std::vector<MeasuredCollective> at_speed_of(const HardwareProfile& profile, const CollectiveTimes& times);

}  // namespace braid
