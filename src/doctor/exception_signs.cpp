#include "doctor/exception_signs.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "doctor/line_kinds.h"
#include "doctor/text_parts.h"
#include "doctor/traceback.h"

namespace braid {
namespace {

// Types that mean one thing whatever their message says: those of libraries that download, of arithmetic.
constexpr std::pair<std::string_view, Sign> kTypes[] = {
    {"huggingface_hub.", Sign::HubUnreachable},
    {"requests.exceptions.", Sign::HubUnreachable},
    {"urllib3.exceptions.", Sign::HubUnreachable},
    {"http.client.", Sign::HubUnreachable},
    {"ssl.SSL", Sign::HubUnreachable},
    {"google.api_core.exceptions.", Sign::HubUnreachable},
    {"google.auth.", Sign::HubUnreachable},
    {"gcsfs.", Sign::HubUnreachable},
    {"modelscope.", Sign::HubUnreachable},
    {"urllib.error.", Sign::HubUnreachable},
    {"aiohttp.", Sign::HubUnreachable},
    {"httpx.", Sign::HubUnreachable},
    {"httpcore.", Sign::HubUnreachable},
    {"botocore.", Sign::HubUnreachable},
    {"boto3.", Sign::HubUnreachable},
    {"s3transfer.", Sign::HubUnreachable},
    {"azure.", Sign::HubUnreachable},
    {"oss2.", Sign::HubUnreachable},
    {"datasets.exceptions.", Sign::HubUnreachable},
    {"FloatingPointError", Sign::NanLoss},
    {"ray.exceptions.", Sign::ConnectionLost},
    {"grpc.", Sign::NetworkTrouble},
    {"socket.", Sign::NetworkTrouble},
    {"tensorflow.python.framework.errors_impl.UnavailableError", Sign::NetworkTrouble},
    {"tensorflow.python.framework.errors_impl.DeadlineExceeded", Sign::CollectiveTimeout},
    {"etcd.", Sign::RendezvousFailed},
    {"torch.cuda.DeferredCudaCallError", Sign::CudaError}};

// Words in small letters that, together, tell what a message is about. The first row that fits counts.
struct Words {
  Sign sign;
  std::array<std::string_view, 3> all{};
};
constexpr Words kWords[] = {
    {Sign::GpuOom, {"out of memory", "cuda"}},
    {Sign::GpuOom, {"out of memory", "gpu"}},
    {Sign::GpuOom, {"out of memory", "device"}},
    {Sign::GpuOom, {"out of memory", "hpu"}},
    {Sign::GpuOom, {"out of memory", "npu"}},
    {Sign::GpuOom, {"out of memory", "hbm"}},
    {Sign::GpuOom, {"mem-fraction-static"}},  // SGLang
    {Sign::GpuOom, {"insufficient gpu memory"}},
    {Sign::GpuOom, {"not enough gpu memory"}},
    {Sign::GpuOom, {"no available memory for the cache blocks"}},  // vLLM
    {Sign::GpuOom, {"memory not enough", "device"}},
    {Sign::HostOom, {"out of memory"}},
    {Sign::HostOom, {"cannot allocate memory"}},
    {Sign::HostOom, {"not enough memory"}},
    {Sign::HostOom, {"failed to allocate", "memory"}},
    {Sign::DiskFull, {"no space left"}},
    {Sign::DiskFull, {"not enough", "disk space"}},
    {Sign::DiskFull, {"insufficient", "disk space"}},
    {Sign::DiskFull, {"disk", " full"}},
    {Sign::DiskFull, {"disk quota"}},
    {Sign::TooManyFiles, {"too many open files"}},
    {Sign::PortInUse, {"already in use", "port"}},
    {Sign::PortInUse, {"already in use", "address"}},
    {Sign::StateDictDiffers, {"state_dict", "missing"}},
    {Sign::StateDictDiffers, {"state_dict", "unexpected"}},
    {Sign::StateDictDiffers, {"state_dict", "match"}},
    {Sign::StateDictDiffers, {"state dict", "match"}},
    {Sign::StateDictDiffers, {"checkpoint", "mismatch"}},
    {Sign::StateDictDiffers, {"checkpoint", "does not match"}},
    {Sign::StateDictDiffers, {"checkpoint", "do not match"}},
    {Sign::StateDictDiffers, {"checkpoint", "different shape"}},
    {Sign::StateDictDiffers, {"checkpoint", "incompatible", "shape"}},
    {Sign::StateDictDiffers, {"checkpoint", "must match"}},
    {Sign::StateDictDiffers, {"checkpoint has", "model has"}},
    {Sign::StateDictDiffers, {"missing key", "load"}},
    {Sign::StateDictDiffers, {"loading weights", "mismatch"}},  // Keras
    {Sign::StateDictDiffers, {"load a weight file"}},
    {Sign::StateDictDiffers, {"cannot assign value to variable"}},
    {Sign::StateDictDiffers, {"saved weights", "expect"}},
    {Sign::StateDictDiffers, {"objects could not be loaded"}},
    {Sign::MissingImport, {"no module named"}},
    {Sign::MissingImport, {"could not import"}},
    {Sign::MissingImport, {"failed to import"}},
    {Sign::MissingImport, {" not installed"}},
    {Sign::MissingImport, {"not been installed"}},
    {Sign::MissingImport, {"to be installed"}},
    {Sign::MissingImport, {"pip install"}},
    {Sign::MissingImport, {"please install"}},
    {Sign::MissingImport, {"conda install"}},
    {Sign::MissingImport, {"shared object file"}},
    {Sign::MissingImport, {"undefined symbol"}},
    {Sign::NotLaunched, {"environment variable", "master_addr"}},
    {Sign::NotLaunched, {"environment variable", "world_size"}},
    {Sign::NotLaunched, {"environment variable", "local_rank"}},
    {Sign::NotLaunched, {"not set", "local_rank"}},
    {Sign::NotLaunched, {"not set", "world_size"}},
    {Sign::NotLaunched, {"use torchrun"}},
    {Sign::NotLaunched, {"torch.distributed.launch", "please"}},
    {Sign::NotLaunched, {"error initializing torch.distributed"}},
    {Sign::RendezvousFailed, {"rendezvous"}},
    {Sign::RendezvousFailed, {"timed out", "waiting for", "workers"}},
    {Sign::RendezvousFailed, {"timed out", "waiting for", "nodes"}},
    {Sign::RendezvousFailed, {"connect", "coordinator"}},
    {Sign::HubUnreachable, {"huggingface.co"}},
    {Sign::HubUnreachable, {"hugging face hub"}},
    {Sign::HubUnreachable, {"download", "fail"}},
    {Sign::HubUnreachable, {"download", "unable"}},
    {Sign::HubUnreachable, {"download", "could not"}},
    {Sign::HubUnreachable, {"too many requests"}},
    {Sign::HubUnreachable, {"rate limit"}},
    {Sign::HubUnreachable, {"unauthorized"}},
    {Sign::HubUnreachable, {"access denied", "s3"}},
    {Sign::HubUnreachable, {"accessdenied"}},
    {Sign::HubUnreachable, {"credentials", "unable"}},
    {Sign::HubUnreachable, {"credentials", "not"}},
    {Sign::HubUnreachable, {"certificate", "verif"}},
    {Sign::HubUnreachable, {"http error"}},
    {Sign::HubUnreachable, {"http", "status code"}},
    {Sign::HubUnreachable, {"https://", "connect"}},
    {Sign::HubUnreachable, {"https://", "timed out"}},
    {Sign::HubUnreachable, {"internet connection"}},
    {Sign::CudaError, {"cuda", " error"}},
    {Sign::CudaError, {"cuda_error"}},
    {Sign::CudaError, {"cudasuccess"}},
    {Sign::CudaError, {"no kernel found"}},
    {Sign::CudaError, {"no hip gpus"}},
    {Sign::CudaError, {"level_zero"}},
    {Sign::CudaError, {"device_lost"}},
    {Sign::CudaError, {"device lost"}},
    {Sign::CudaError, {"cuda error"}},
    {Sign::CudaError, {"cuda call failed"}},
    {Sign::CudaError, {"cuda", "not available"}},
    {Sign::CudaError, {"cuda", "not compiled"}},
    {Sign::CudaError, {"cuda", "driver"}},
    {Sign::CudaError, {"nvidia", "driver"}},
    {Sign::CudaError, {"no gpu", "found"}},
    {Sign::CudaError, {"no gpu", "available"}},
    {Sign::CudaError, {"no gpu", "detected"}},
    {Sign::CudaError, {"gpu", "compute capability"}},
    {Sign::CudaError, {"no accelerator"}},
    {Sign::CudaError, {"gemm launch failed"}},
    {Sign::CudaError, {"cublas"}},
    {Sign::CudaError, {"cusolver"}},
    {Sign::CudaError, {"curand"}},
    {Sign::CudaError, {"cufft"}},
    {Sign::CudaError, {"nrt_"}},  // Neuron
    {Sign::CudaError, {"no ", "devices found"}},
    {Sign::CudaError, {"no ", "device found"}},
    {Sign::CudaError, {"cudnn"}},
    {Sign::CudaError, {"nvrtc"}},
    {Sign::CudaError, {"ptxas"}},
    {Sign::CudaError, {"no kernel image"}},
    {Sign::CudaError, {"hip error"}},
    {Sign::NetworkTrouble, {"unavailable: "}},  // gRPC's codes, as XLA tells them
    {Sign::CollectiveTimeout, {"deadline_exceeded"}},
    {Sign::CollectiveTimeout, {"deadline exceeded"}},
    {Sign::CollectiveTimeout, {"timed out", "barrier"}},
    {Sign::CollectiveTimeout, {"timed out", "collective"}},
    {Sign::CollectiveTimeout, {"timed out", "all_reduce"}},
    {Sign::CollectiveTimeout, {"timed out", "nccl"}},
};

// Long messages end with what may have led to it.
std::string_view without_guesses(std::string_view message) {
  for (const char* guess :
       {" usually ", "ossible cause", "ossible reason", "ommon cause", "ommon reason", "ight be caused"})
    message = message.substr(0, message.find(guess));
  return message;
}

std::optional<Sign> sign_of_type(std::string_view type) {
  for (const auto& [name, sign] : kTypes)
    if (type.starts_with(name)) return sign;
  return std::nullopt;
}

}  // namespace

std::optional<Sign> sign_of_words(std::string_view message) {
  std::string low(without_guesses(message));
  std::transform(low.begin(), low.end(), low.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  for (const Words& words : kWords)
    if (std::all_of(words.all.begin(), words.all.end(), [&](std::string_view word) { return has_word(low, word); }))
      return words.sign;
  return std::nullopt;
}

Sign sign_of_exception(std::string_view exception) {
  if (has_word(exception, "failed to pass monitoredBarrier")) return Sign::CollectiveTimeout;
  const auto sign = sign_in(exception);
  const bool is_crash = sign == Sign::NativeCrash && !has_word(exception, "killed by signal");
  if (sign && !is_crash && role_of(*sign) != Role::Context && role_of(*sign) != Role::Launcher) return *sign;
  return sign_of_unusual(exception);
}

Sign sign_of_unusual(std::string_view exception) {
  if (says_not_finite(exception)) return Sign::NanLoss;
  const std::string_view type = exception_type(exception);
  if (const auto sign = sign_of_type(type)) return *sign;
  return sign_of_words(exception.substr(type.size())).value_or(Sign::PythonError);
}

bool is_quoted_from_elsewhere(std::string_view exception) {
  return has_word(exception, ": Caught ") &&
         (has_word(exception, " in DataLoader worker process") || has_word(exception, " in pin memory thread") ||
          has_word(exception, " in replica "));
}

}  // namespace braid
