// Predicts how long a rank computes and communicates, and how much of its communication is hidden.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "log/iteration_log.h"
#include "paper/work.h"
#include "predict/collective_time.h"

namespace braid {

double seconds_of(const Work& work, const HardwareProfile& hardware);
// The calls run one after the other, in a later microbatch of a step unless in_microbatch() has selected the first. The
// host runs ahead of a GPU and counts only where it is slower; on a CPU, both times add up.
double seconds_of(const std::vector<Work>& work, const HardwareProfile& hardware);

struct OpTime {
  double compute = 0;
  std::array<double, kCommKinds> exposed{};  // by CommKind: communication during which nothing is computed

  double& operator[](CommKind kind) { return exposed[static_cast<std::size_t>(kind)]; }
  double communication() const;
  double seconds() const { return compute + communication(); }
  OpTime& operator+=(const OpTime& other);
};

// How long the collectives of one rank of a module take.
class GroupTimes {
 public:
  GroupTimes(const Module& module, int global_rank, const HardwareProfile& hardware)
      : module_(module), rank_(global_rank), hardware_(hardware) {}
  double seconds(const Collective& collective);

 private:
  const Module& module_;
  const int rank_;
  const HardwareProfile& hardware_;
  std::map<std::string, GroupPlacement> placements_;  // cached
};

// Whether rows are sent to their experts while the shared expert is computed.
enum class RowsTravel { Alone, BesideSharedExpert };

// The time of a forward or backward of one layer. As long as there are products to overlap with, these are hidden: a
// collective that runs beside a product; (n - 1) / n of one in n pieces; rows sent to experts beside the shared expert.
OpTime layer_time(const std::vector<Work>& work, const Collectives& collectives, RowsTravel travel, GroupTimes& groups,
                  const HardwareProfile& hardware);

// The time of collectives that nothing hides.
OpTime collectives_time(const Collectives& collectives, GroupTimes& groups);

}  // namespace braid
