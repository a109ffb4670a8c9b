// Collective calls over all ranks, outside of a step.
#pragma once

#include "comm/group.h"

namespace braid {

class World;

// Collective: the element-wise reduction of all ranks' values.
std::vector<double> reduced(const std::vector<double>& values, Reduce how, World& world);

// Collective: sums each tensor (of type double) over all ranks, with one all-reduce for all of them.
std::vector<std::vector<double>> sum_terms(const std::vector<at::Tensor>& terms, const Group& world);

// Collective: the text of the first rank that has one, shortened if it is long; empty if no rank has one.
std::string first_text(const std::string& own, World& world);

// Collective: texts 0 to `count` - 1, each of which exactly one rank must provide.
std::vector<std::string> gathered_texts(const std::vector<std::pair<int, std::string>>& own, int count, World& world);

// Progress of a long operation.
struct Amount {
  double done = 0, total = 0;
};

// Collective: returns when `finished` holds on every rank. Ranks synchronize continually, so that a slow rank is not
// mistaken for one that hangs. `report` receives the sum over all ranks, at growing intervals of some seconds.
void wait_for_all_ranks(World& world, const std::function<bool()>& finished, const std::function<Amount()>& amount,
                        const std::function<void(const Amount& of_all, double seconds)>& report);

// Runs `work` on a separate thread while the ranks wait together. Rethrows what `work` throws.
void run_while_all_wait(World& world, const std::function<void()>& work, const std::function<Amount()>& amount,
                        const std::function<void(const Amount& of_all, double seconds)>& report);

}  // namespace braid
