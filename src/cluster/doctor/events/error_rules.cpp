// What went wrong by itself: files, modules, weights.
#include "cluster/doctor/events/signs.h"

namespace braid {
namespace {

constexpr Rule kRules[] = {
    {"No space left on device", Sign::DiskFull},
    {"Disk quota exceeded", Sign::DiskFull},
    {"[Errno 28]", Sign::DiskFull},
    {"[Errno 122]", Sign::DiskFull},
    {"quota exceeded", Sign::DiskFull, nullptr, "project"},
    {"Quota exceeded", Sign::DiskFull, "isk"},
    {"Not enough disk space", Sign::DiskFull},
    {"not enough disk space", Sign::DiskFull},
    {"Not enough free disk space", Sign::DiskFull},
    {"out of disk space", Sign::DiskFull},
    {"Out of disk space", Sign::DiskFull},
    {"OutOfDiskError", Sign::DiskFull},                                          // Ray
    {"Disk full while running", Sign::DiskFull},                                 // Azure
    {"enforce fail at inline_container.cc", Sign::DiskFull, nullptr, "Reader"},  // torch.save cannot write
    {"file write failed", Sign::DiskFull},
    {"ENOSPC", Sign::DiskFull},
    {"EDQUOT", Sign::DiskFull},
    {"File too large", Sign::DiskFull, "[Errno 27]"},
    {" requested and ", Sign::DiskFull, " written"},  // NumPy
    {"errno = 28", Sign::DiskFull},
    {"PytorchStreamWriter failed writing", Sign::DiskFull},
    {"basic_ios::clear: iostream error", Sign::DiskFull},  // torch.save
    {"uv: command not found", Sign::UvMissing},
    {"uv: not found", Sign::UvMissing},
    {": uv: No such file or directory", Sign::UvMissing},
    {"'uv': No such file", Sign::UvMissing},
    {"\"uv\": executable file not found", Sign::UvMissing},
    {"EADDRINUSE", Sign::PortInUse},
    {"ddress already in use", Sign::PortInUse},
    {"but another process is utilizing it", Sign::PortInUse},  // Accelerate
    {"server socket has failed to listen on any", Sign::PortInUse, nullptr, "ermission"},
    {"[Errno 98]", Sign::PortInUse},
    {"errno: 98", Sign::PortInUse},
    {"[Errno 48]", Sign::PortInUse},
    {"WinError 10048", Sign::PortInUse},
    {"ort is already allocated", Sign::PortInUse},  // Docker
    {"ort already in use", Sign::PortInUse},
    {"address already bound", Sign::PortInUse},
    {"have been bound already", Sign::PortInUse},  // Ascend
    {"ailed to bind to ", Sign::PortInUse, nullptr, "ermission"},
    {"No address added out of total", Sign::PortInUse},  // gRPC
    {"Could not start gRPC server", Sign::PortInUse},
    {"is already in use", Sign::PortInUse, "ort ", "nvidia"},
    {"No module named 'megatron.core.", Sign::MegatronShadowed},
    {"from 'megatron.core", Sign::MegatronShadowed, "cannot import name"},
    {"ModuleNotFoundError", Sign::MissingImport},
    {"Error while finding module specification", Sign::MissingImport},
    {"ImportError", Sign::MissingImport},
    {"error while loading shared libraries", Sign::MissingImport},
    {"cannot open shared object file", Sign::MissingImport, "Error"},
    {": No module named ", Sign::MissingImport, "python"},  // -m
    {"symbol lookup error", Sign::MissingImport},
    {"GLIBCXX_", Sign::MissingImport, "not found"},
    {"GLIBC_", Sign::MissingImport, "not found"},
    {"CXXABI_", Sign::MissingImport, "not found"},
    {"Could not load library lib", Sign::MissingImport},
    {"Unable to load any of {lib", Sign::MissingImport},
    {"PackageNotFoundError", Sign::MissingImport},
    {"DistributionNotFound", Sign::MissingImport},
    {"VersionConflict: ", Sign::MissingImport},
    {"Error loading", Sign::MissingImport, ".dll"},
    {"Failed to import transformers", Sign::MissingImport},
    {"partially initialized module", Sign::MissingImport},
    {"numpy.dtype size changed", Sign::MissingImport},
    {"Numpy is not available", Sign::MissingImport},
    {"_ARRAY_API not found", Sign::MissingImport},
    {"requires the following packages that were not found", Sign::MissingImport},
    {"Could not find module", Sign::MissingImport, "Error"},
    {"undefined symbol: ", Sign::MissingImport},
    {"in static TLS block", Sign::MissingImport},
    {"Inconsistency detected by ld.so", Sign::MissingImport},
    {"No matching distribution found for", Sign::MissingImport},
    {"ailed building wheel for", Sign::MissingImport},
    {"ould not build wheels for", Sign::MissingImport},
    {"Ninja is required to load", Sign::MissingImport},
    {"Unable to load NCCL library", Sign::MissingImport},  // JAX
    {"'NoneType' object is not an iterator", Sign::CacheNotShared},
    {"Weight mismatch detected", Sign::WeightsDiffer},
    {"size mismatch for ", Sign::StateDictDiffers},
    {"in loading state_dict for", Sign::StateDictDiffers},
    {"key(s) in state_dict", Sign::StateDictDiffers},
    {"ound trip mismatch", Sign::WeightsDiffer},
    {"ound-trip mismatch", Sign::WeightsDiffer},
    {"oundtrip mismatch", Sign::WeightsDiffer},
    {"Size mismatch between saved", Sign::StateDictDiffers},              // torch.distributed.checkpoint
    {"is not compatible with the stored shape", Sign::StateDictDiffers},  // Orbax
    {"tree structures do not match", Sign::StateDictDiffers, "restore"},
    {"Assign requires shapes of both tensors to match", Sign::StateDictDiffers},  // TensorFlow
    {"mismatch between the current graph and the graph", Sign::StateDictDiffers},
    {"Tensor name \"", Sign::StateDictDiffers, "not found in checkpoint"},
    {"not found in checkpoint", Sign::StateDictDiffers, nullptr, "director"},
    {"ignore_mismatched_sizes", Sign::StateDictDiffers, "Error"},
    {"loaded state dict contains a parameter group", Sign::StateDictDiffers},
    {"loaded state dict has a different number of", Sign::StateDictDiffers},
    {"does not match checkpoint", Sign::StateDictDiffers, "hape"},
    {"shape mismatch", Sign::StateDictDiffers, "checkpoint"},
    {"Shape mismatch", Sign::StateDictDiffers, "checkpoint"},
    {"shapes mismatch", Sign::StateDictDiffers, "oad"},
    {"Unexpected keys in state dict", Sign::StateDictDiffers},
    {"Missing keys in state dict", Sign::StateDictDiffers},
    {"checkpoint is incompatible", Sign::StateDictDiffers},
    {"value from checkpoint", Sign::StateDictDiffers, "argument value"},  // Megatron
    {"missing in the checkpoint", Sign::StateDictDiffers},
    {"Loading a checkpoint for MP=", Sign::StateDictDiffers},
    {"checkpoint being loaded used a DP world size", Sign::StateDictDiffers},  // DeepSpeed
    {"ScopeParamShapeError", Sign::StateDictDiffers},                          // Flax
    {"has a different shape than", Sign::StateDictDiffers, "checkpoint"},
    {"axes to be a tuple of", Sign::StateDictDiffers, "hape mismatch"},
    {"The shape of parameter", Sign::StateDictDiffers, "not match"},  // Paddle
    {"Missing key in checkpoint", Sign::StateDictDiffers},
    {"Trying to set a tensor of shape", Sign::StateDictDiffers},
    {"hape mismatch for loaded", Sign::StateDictDiffers},
    {"global shape metadata", Sign::StateDictDiffers},
};

}  // namespace

std::span<const Rule> error_rules() { return kRules; }

}  // namespace braid
