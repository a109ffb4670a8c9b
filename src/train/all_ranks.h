// What all ranks of a run do together outside of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dist/group.h"

namespace braid {

class World;

// Collective: the values of all ranks, element by element.
std::vector<double> reduced(const std::vector<double>& values, Reduce how, World& world);

// Collective: tensors of type double, each summed over all ranks, at the price of one.
std::vector<std::vector<double>> sum_terms(const std::vector<at::Tensor>& terms, const Group& world);

// Collective: the text of the first rank that has one, shortened if it is long; empty if no rank has one.
std::string first_text(const std::string& own, World& world);

// How far something is that takes a while.
struct Amount {
  double done = 0, total = 0;
};

// Collective: returns when `finished` holds on every rank. Ranks meet all the time, so that nobody takes one that is
// slow for one that hangs; `report` gets the sum over all ranks, at growing intervals of some seconds.
void wait_together(World& world, const std::function<bool()>& finished, const std::function<Amount()>& amount,
                   const std::function<void(const Amount& of_all, double seconds)>& report);

// Runs `work` on a thread of its own while the ranks wait together. What it throws is thrown here.
void work_together(World& world, const std::function<void()>& work, const std::function<Amount()>& amount,
                   const std::function<void(const Amount& of_all, double seconds)>& report);

}  // namespace braid
