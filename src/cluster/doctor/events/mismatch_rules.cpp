// Ranks that do not do the same: collectives, parameters, devices.
#include "cluster/doctor/events/signs.h"

namespace braid {
namespace {

constexpr Rule kRules[] = {
    {"Detected mismatch between collectives", Sign::CollectiveMismatch},
    {"Mismatch between collective operation types", Sign::CollectiveMismatch},
    {"ismatched collective", Sign::CollectiveMismatch},
    {"Mismatched allreduce", Sign::CollectiveMismatch},  // Horovod
    {"Mismatched allgather", Sign::CollectiveMismatch},
    {"Mismatched broadcast", Sign::CollectiveMismatch},
    {"Mismatched alltoall", Sign::CollectiveMismatch},
    {"Mismatched reducescatter", Sign::CollectiveMismatch},
    {"Mismatched MPI operations", Sign::CollectiveMismatch},
    {"Mismatched data types", Sign::CollectiveMismatch},
    {"Mismatched tensor shapes", Sign::CollectiveMismatch},
    {"collective mismatch error", Sign::CollectiveMismatch},  // NCCL
    {"message truncated : receiving", Sign::CollectiveMismatch},
    {"MPI_ERR_TRUNCATE", Sign::CollectiveMismatch},
    {"op.preamble.length <= op.nbytes", Sign::CollectiveMismatch},  // Gloo
    {"ollectives differ in the following aspects", Sign::CollectiveMismatch},
    {"Inconsistent collective", Sign::CollectiveMismatch},
    {"parameters that were not used in producing", Sign::UnusedParameters},
    {"Expected to mark a variable ready only once", Sign::UnusedParameters},
    {"using the same GPU", Sign::DuplicateGpu, "ank"},
    {"Expected to have finished reduction in the prior", Sign::UnusedParameters},
    {"Duplicate GPU detected", Sign::DuplicateGpu},
    {"Multiple ranks on the same GPU", Sign::DuplicateGpu},
};

}  // namespace

std::span<const Rule> mismatch_rules() { return kRules; }

}  // namespace braid
