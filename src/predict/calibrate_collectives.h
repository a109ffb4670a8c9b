// Measures the collectives of this host's ranks as training calls them. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "predict/fit_collectives.h"

namespace braid {

class World;

// What each case takes, in seconds that this rank's threads compute: with ranks that share cores, time in which they
// sleep is not lost. A rank computes a small layer before each call, so that its threads fall asleep and wake up, and
// caches are as cold after a call as in training; that layer's own time does not count. Every rank of `world` calls it
// and goes through all cases `rounds` times, at least once.
std::vector<MeasuredCollective> measure_collectives(World& world, const std::vector<CollectiveCase>& cases, int rounds);

// As a rank that the launcher started: measures collective_cases() with all others. Rank 0 writes the result to `path`.
void measure_collectives_as_rank(const std::string& path);
std::vector<MeasuredCollective> read_collectives(const std::string& path);

}  // namespace braid
