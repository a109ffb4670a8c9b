// What a job's options mean for each of its steps, in a script or in an interactive session: its environment, and
// srun's container options.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cluster/slurm/options.h"

namespace braid {

struct CacheVariable {
  std::string_view name, folder;  // the folder is inside --cache-dir
};
inline constexpr CacheVariable kCacheVariables[] = {
    {"HF_HOME", "huggingface"}, {"UV_CACHE_DIR", "uv"}, {"NEMO_HOME", "nemo"}};

// The caches (for Braid itself, only Hugging Face's) and --env. NAME=value, quoted for bash: ready for `export`.
std::vector<std::string> exports_of_options(const SlurmOptions& options, bool is_braid);

std::vector<std::string> exports_for_gpus();  // the usual settings for training on NVIDIA GPUs

std::vector<std::string> container_options(const SlurmOptions& options);  // none without a container
std::vector<std::string> mpi_option(const SlurmOptions& options);         // one or none

}  // namespace braid
