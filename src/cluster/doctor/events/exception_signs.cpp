#include "cluster/doctor/events/exception_signs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cluster/doctor/events/line_kinds.h"
#include "cluster/doctor/events/traceback.h"
#include "cluster/doctor/lines/text_parts.h"

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
    {"datasets.exceptions.DatasetNotFound", Sign::HubUnreachable},
    {"fsspec.exceptions.", Sign::HubUnreachable},
    {"FloatingPointError", Sign::NanLoss},
    {"ray.exceptions.", Sign::ConnectionLost},
    {"grpc.", Sign::NetworkTrouble},
    {"socket.", Sign::NetworkTrouble},
    {"tensorflow.python.framework.errors_impl.UnavailableError", Sign::NetworkTrouble},
    {"tensorflow.python.framework.errors_impl.DeadlineExceeded", Sign::CollectiveTimeout},
    {"etcd.", Sign::RendezvousFailed},
    {"torch.cuda.DeferredCudaCallError", Sign::CudaError},
    {"pynvml.", Sign::CudaError},
    {"cudnn", Sign::CudaError}};

// Words in small letters; one of each list must stand in a message. The first row that fits counts.
struct Words {
  Sign sign;
  const char* what;
  const char* how = "";
};
constexpr const char* kDevices = "cuda|gpu|device|tpu |tpu:|npu |npu:|hpu |hpu:|xpu |xpu:|hbm";  // not "input"
constexpr Words kWords[] = {
    {Sign::GpuOom, "out of memory| oom |insufficient memory|memory not enough", kDevices},
    {Sign::GpuOom,
     "mem-fraction-static|insufficient gpu memory|not enough gpu memory|exceeds device memory"},  // SGLang
    {Sign::GpuOom, "gpu memory utilization|gpu_memory_utilization", "increas|decreas|less than"},
    {Sign::GpuOom, "enough gpu ram|enough cuda memory|no executable batch size|out of gpu memory"},
    {Sign::GpuOom, "not fit", "gpu memory|memory of the gpu|device memory"},
    {Sign::GpuOom, "memory isn't enough", "device"},                                                       // MindSpore
    {Sign::GpuOom, "no available memory for the cache blocks|larger than the available kv cache memory"},  // vLLM
    {Sign::HostOom, "out of memory|cannot allocate memory|not enough memory|insufficient memory"},
    {Sign::HostOom, "failed to allocate|cannot allocate", "memory"},
    {Sign::DiskFull, "no space left|disk quota|quota exceeded"},
    {Sign::DiskFull, "disk space|storage space", "not enough|insufficient|out of"},
    {Sign::DiskFull, "disk", " full| exhausted"},
    {Sign::TooManyFiles, "too many open files"},
    {Sign::NanLoss, "loss scale|loss_scale|loss-scale|lossscale|grad scale|grad_scale|gradient scale|gradscaler",
     "too small|too low|is small|minimum|min_loss|min_scale|underflow|below|decrease|reached 0|is 0|is zero|is "
     "nan|inf"},
    {Sign::PortInUse, "already in use", "port|address"},
    {Sign::PortInUse, "find a port to bind|available port between|used by other components"},  // Ray
    {Sign::StateDictDiffers, "state_dict|state dict", "missing|unexpected|match|not in |not found"},
    {Sign::StateDictDiffers, "checkpoint",
     "mismatch|does not match|do not match|different shape|incompatible shape|must match|unexpected key|missing key|"
     "expected shape"},
    {Sign::StateDictDiffers, "checkpoint has", "model has"},
    {Sign::StateDictDiffers, "missing key|unexpected key", "load|weight"},
    {Sign::StateDictDiffers, "loading weights", "mismatch"},  // Keras
    {Sign::StateDictDiffers, "load a weight file|cannot assign value to variable|objects could not be loaded"},
    {Sign::StateDictDiffers, "saved weights", "expect"},
    {Sign::MissingImport, "no module named|could not import|failed to import| not installed|not been installed"},
    {Sign::MissingImport, "to be installed|pip install|please install|conda install|shared object file"},
    {Sign::MissingImport, "undefined symbol"},
    {Sign::MissingImport, "operator ", "does not exist"},
    {Sign::NotLaunched, "environment variable|env variable|env var |env vars | env was not set| env is not set",
     "master_addr|world_size|local_rank|slurm_|jsm_|lsb_|ompi_|pmi_"},
    {Sign::NotLaunched, "no such file or directory: ",
     "'mpirun'|'mpiexec'|'pdsh'|'ssh'|'srun'|'sbatch'|'qsub'|'bsub'|'docker'|'singularity'|'apptainer'|'torchrun'"},
    {Sign::NotLaunched, "local_rank|world_size|master_addr|master_port",
     "rank not set|rank is not set|size not set|size is not set|addr not set|addr is not set|port not set|port is not "
     "set"},
    {Sign::NotLaunched, "unable to proceed with launching"},  // DeepSpeed's hostfile
    {Sign::NotLaunched, "'slurm_|'ompi_|'pmi_|use torchrun|error initializing torch.distributed"},
    {Sign::NotLaunched, "torch.distributed.launch", "please"},
    {Sign::NotLaunched, "could not find", "slurm environment|openmpi environment|torch environment"},  // Colossal-AI
    {Sign::NotLaunched, "hosts via ssh"},
    {Sign::RendezvousFailed, "rendezvous"},
    {Sign::RendezvousFailed, "timed out",
     "waiting for workers|waiting for all |waiting for nodes|nodes to join|node to start|during startup|head node|"
     "starting actors"},
    {Sign::RendezvousFailed, "timed out waiting", "workers|nodes"},
    {Sign::RendezvousFailed, "coordinator", "connect|reach"},
    {Sign::RendezvousFailed,
     "failed to connect|could not connect|cannot connect|can't connect|unable to connect|trying to connect",
     "grpc://|tcp://|scheduler|tracker|remote server|parameter server|master|ray cluster|redis"},
    {Sign::HubUnreachable, "huggingface.co|hugging face hub",
     "connect|reach|access|auth token|hf_token|your token|gated|private|resolve|download|identifier|timed out|file "
     "named|offline|http error|404"},
    {Sign::HubUnreachable, "too many requests|rate limit|unauthorized|accessdenied"},
    {Sign::HubUnreachable,
     "download error|download fail|error downloading|error while downloading|error occurred while downloading|"
     "error during download|failed to download|fail to download|failed downloading|failure downloading|"
     "unable to download|could not download|couldn't download|cannot download|can't download|not be downloaded"},
    {Sign::HubUnreachable, "downloading ", " failed| unable| could not"},
    {Sign::HubUnreachable, "connection error", " load"},  // not "dataloader"
    {Sign::HubUnreachable, "access denied", "s3"},
    {Sign::HubUnreachable, "access key id"},
    {Sign::HubUnreachable, "credentials", "unable|not found|no credentials|could not|invalid|expired|missing"},
    {Sign::HubUnreachable, "certificate", "verif"},
    {Sign::HubUnreachable, "http error|internet connection|hub is not reachable|offline mode is enabled"},
    {Sign::HubUnreachable, "couldn't find cache for|pipe:curl|pipe:aws|pipe:gsutil"},
    {Sign::HubUnreachable, "http", "status code"},
    {Sign::HubUnreachable, "https://", "connect|timed out"},
    {Sign::CudaError, "cuda |cuda-|cuda_", " error|not available|not compiled|driver"},  // not "cuda:0"
    {Sign::CudaError,
     "cuda_error|cudasuccess|cuda call failed|cudageterror|cudacachingallocator|hip error|no hip gpus"},
    {Sign::CudaError, "no kernel found|no kernel image|level_zero|device_lost|device lost|gemm launch failed|nvml"},
    {Sign::CudaError, "nvidia", "driver"},
    {Sign::CudaError, "libcuda.so"},
    {Sign::CudaError,
     "no gpu|no cuda|no tpu|no npu|no xpu|no hpu|no neuron|no supported gpu|no visible cuda|no visible gpu|cuda not",
     "found|available|detected|devices"},
    {Sign::CudaError, "cuda device|a gpu", "none is available|none available|none was found|none found"},
    {Sign::CudaError, "cuda version mismatch|hip version mismatch"},
    {Sign::CudaError, "compute capability", "gpu|require|at least|or higher"},
    {Sign::CudaError, "tpu |npu |xpu |hpu ", "initialization failed|failed to initialize|unable to initialize"},
    {Sign::CudaError,
     "no accelerator is|no accelerator found|no accelerators|cublas|cusolver|curand|cufft|cudnn|nvrtc|ptxas|nrt_",
     "error|fail|status|unable|could not|not init|not found|version|not support|unsupported|accelerator"},
    {Sign::NetworkTrouble, "network interface", "no |not found"},
    {Sign::NetworkTrouble, "unavailable: "},  // gRPC's codes, as XLA tells them
    {Sign::CollectiveTimeout, "deadline_exceeded|deadline exceeded"},
    {Sign::CollectiveTimeout,
     "timed out|timeout after|timeout while|timeout waiting|timeout in |timeout during |timeout expired|timeout "
     "reached|timeout exceeded|nccl timeout|gloo timeout|barrier timeout|reduce timeout|gather timeout|broadcast "
     "timeout|collective timeout|operation timeout",  // not "nccl_timeout"
     "barrier|collective|all_reduce|allreduce|all-reduce|all_gather|allgather|broadcast|nccl|gloo|all ranks"},
    {Sign::Hardware, "ecc error|fallen off the bus|gpu is lost"},
    {Sign::SharedMemory, "shared memory|/dev/shm", "insufficient|not enough|no space|too small|ran out|out of"},
    {Sign::UnusedParameters, "unused parameter"},
    {Sign::UnusedParameters, "find_unused_parameters", "did not|not used|gradient|reduction"},
    {Sign::DuplicateGpu, "duplicate gpu", "rank|process"},
    {Sign::DuplicateGpu, "same gpu|same cuda device", "ranks|processes|rank 0 and|both"},
    {Sign::CollectiveMismatch, "mismatch", "collective|across ranks|between ranks|on all ranks|across processes"},
    {Sign::CollectiveMismatch, "different",
     "different collective|collectives|across ranks|between ranks|on all ranks|across processes"},
    {Sign::HostOom, "killed by signal: killed|oom killer|oom-killer"},
    {Sign::RendezvousFailed, "timed out|timeout", "trying to connect|to connect to|joining|to join|handshake"},
    {Sign::NetworkTrouble,
     "connection refused|connection timed out|no route to host|network is unreachable|network error|network failure|"
     "name resolution|host unreachable"},
    {Sign::ConnectionLost,
     "connection closed|connection reset|broken pipe|connection aborted|lost connection|"
     "connection lost|connection was lost|disconnected from|peer closed"},
};

// Long messages end with what may have led to it.
std::string_view without_guesses(std::string_view message) {
  for (const char* guess : {" usually ", "ossible cause", "ossible reason", "ommon cause", "ommon reason",
                            "ight be caused", "hile checking arguments for"})
    message = message.substr(0, message.find(guess));
  return message;
}

// Pages of documentation that a message recommends: nothing was looked for there.
std::string without_docs(std::string text) {
  constexpr std::string_view kDocs = "huggingface.co/docs";
  for (std::size_t at = 0; (at = text.find(kDocs, at)) != std::string::npos;) text[at] = ' ';
  return text;
}

// "KeyError: 'nccl_timeout'": a name, and no sentence.
bool is_missing_key(std::string_view type, std::string_view message) {
  return type.ends_with("KeyError") &&
         !has_word(trimmed(message.substr(std::min<std::size_t>(1, message.size()))), " ");
}

// Its words are names in the program, and tell nothing else.
bool is_slip_of_the_program(std::string_view type) {
  for (const char* slip : {"AttributeError", "TypeError", "NameError", "UnboundLocalError", "SyntaxError"})
    if (type.ends_with(slip)) return true;
  return false;
}

std::optional<Sign> sign_of_type(std::string_view type) {
  for (const auto& [name, sign] : kTypes)
    if (type.starts_with(name)) return sign;
  return std::nullopt;
}

}  // namespace

std::optional<Sign> sign_of_words(std::string_view message) {
  const std::string low = without_docs(in_small_letters(without_guesses(message)));
  for (const Words& words : kWords)
    if (has_one_of(low, words.what) && has_one_of(low, words.how)) return words.sign;
  return std::nullopt;
}

Sign sign_of_exception(std::string_view exception) {
  if (has_word(exception, "failed to pass monitoredBarrier")) return Sign::CollectiveTimeout;
  const bool may_crash = has_word(exception, "killed by signal");
  for (const Rule& rule : rules()) {
    const Role role = role_of(rule.sign);
    if (role == Role::Context || role == Role::Launcher || (rule.sign == Sign::NativeCrash && !may_crash)) continue;
    if (has_word(exception, rule.anchor) && fits(rule, exception)) return rule.sign;
  }
  return sign_of_unusual(exception);
}

Sign sign_of_unusual(std::string_view exception) {
  const std::string_view type = exception_type(exception);
  const std::string_view message = exception.substr(type.size());
  if (is_slip_of_the_program(type)) return Sign::PythonError;
  if (is_missing_key(type, message))  // "KeyError: 'SLURM_PROCID'"
    return has_one_of(in_small_letters(message), "'slurm_|'ompi_|'pmi_") ? Sign::NotLaunched : Sign::PythonError;
  if (says_not_finite(exception)) return Sign::NanLoss;
  if (const auto sign = sign_of_type(type.empty() ? exception : type)) return *sign;  // "socket.timeout" is small
  return sign_of_words(message).value_or(Sign::PythonError);
}

bool is_quoted_from_elsewhere(std::string_view exception) {
  return has_word(exception, ": Caught ") &&
         (has_word(exception, " in DataLoader worker process") || has_word(exception, " in pin memory thread") ||
          has_word(exception, " in replica "));
}

}  // namespace braid
