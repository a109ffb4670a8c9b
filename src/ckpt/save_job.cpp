#include "ckpt/save_job.h"
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>
#include "base/error.h"
#include "base/process.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/dist_checkpoint.h"

namespace braid {
namespace {

constexpr std::chrono::milliseconds kLongestPause(200);

std::int64_t bytes_of(const std::vector<KeyedTensor>& tensors) {
  return sum_of<std::int64_t>(tensors, [](const KeyedTensor& tensor) { return tensor.value.nbytes(); });
}

// Mapped directly, because the allocator would keep the memory for later.
at::Tensor mapped_memory(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw_errno(fmt::format("cannot allocate {} for the copy that is saved", readable_bytes(bytes)));
  ::madvise(memory, size, MADV_HUGEPAGE);
  return at::from_blob(
      memory, {bytes}, [size](void* mapped) { ::munmap(mapped, size); }, at::kByte);
}

// A GPU copies several times faster into pinned memory, of which there should be little.
constexpr std::int64_t kPinnedBytes = 64 << 20;
void copy_through(const at::Tensor& pinned, const at::Tensor& from, const at::Tensor& to) {
  const at::Tensor source = from.contiguous().view(-1), target = to.view(-1);
  const std::int64_t at_once = kPinnedBytes / static_cast<std::int64_t>(from.element_size());
  for (std::int64_t begin = 0; begin < source.numel(); begin += at_once) {
    const std::int64_t count = std::min(at_once, source.numel() - begin);
    const at::Tensor piece = pinned.view(from.scalar_type()).narrow(0, 0, count);
    piece.copy_(source.narrow(0, begin, count));
    target.narrow(0, begin, count).copy_(piece);
  }
}

constexpr std::int64_t kAlignment = 64;
std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::vector<KeyedTensor> copied_to_host(std::vector<KeyedTensor> tensors) {
  std::int64_t bytes = 0;
  for (const KeyedTensor& tensor : tensors) bytes += aligned(static_cast<std::int64_t>(tensor.value.nbytes()));
  if (bytes == 0) return tensors;
  const at::NoGradGuard no_grad;
  const at::Device device = tensors.front().value.device();
  const at::Tensor memory = mapped_memory(bytes);
  const at::Tensor pinned =
      device.is_cpu() ? at::Tensor() : at::empty({kPinnedBytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  std::int64_t begin = 0;
  for (KeyedTensor& tensor : tensors) {
    const auto size = static_cast<std::int64_t>(tensor.value.nbytes());
    at::Tensor copy = memory.narrow(0, begin, size).view(tensor.value.scalar_type()).view(tensor.value.sizes());
    if (device.is_cpu())
      copy.copy_(tensor.value);
    else
      copy_through(pinned, tensor.value, copy);
    tensor.value = std::move(copy);
    begin += aligned(size);
  }
  return tensors;
}

std::vector<KeyedTensor> taken_to_host(std::vector<KeyedTensor> tensors) {
  std::vector<KeyedTensor> elsewhere;
  for (const KeyedTensor& tensor : tensors)
    if (!tensor.value.device().is_cpu()) elsewhere.push_back(tensor);
  elsewhere = copied_to_host(std::move(elsewhere));
  auto next = elsewhere.begin();
  const at::NoGradGuard no_grad;
  for (KeyedTensor& tensor : tensors)
    tensor.value = tensor.value.device().is_cpu() ? tensor.value.contiguous() : (next++)->value;
  return tensors;
}

SaveJob::SaveJob(SaveContent content, SaveTarget target)
    : content_(std::move(content)), target_(std::move(target)), bytes_(bytes_of(content_.tensors)), thread_([this] {
        try {
          write();
          if (target_.writer == target_.publisher && !cancelled_) publish_all();
        } catch (...) {
          error_ = std::current_exception();
        }
        done_ = true;
      }) {}

SaveJob::~SaveJob() {
  cancelled_ = true;
  thread_.join();
}

void SaveJob::write() {
  const std::string partial = partial_folder(target_.root, target_.iteration);
  DistWriter writer(partial, target_.writer, &cancelled_);
  for (const auto& [key, object] : content_.objects) writer.add_object(key, object);
  for (KeyedTensor& tensor : content_.tensors) {
    if (cancelled_) return;
    writer.add_tensor(tensor.key, tensor.shape, tensor.begin, tensor.value);
    written_ += static_cast<std::int64_t>(tensor.value.nbytes());
    tensor.value.reset();
  }
  writer.finish();
  hand_in(partial, target_.writer, writer);
}

void SaveJob::publish_all() {
  const std::string partial = partial_folder(target_.root, target_.iteration);
  PollingBackoff pause(kLongestPause);
  for (int writer = 0; writer < target_.writers; ++writer)
    while (!handed_in(partial, writer)) {
      if (cancelled_) return;
      pause();
    }
  if (target_.check) target_.check();
  saved_ = {.bytes = publish(target_.root, target_.iteration, target_.writers, write_archive(content_.common)),
            .at = std::chrono::steady_clock::now()};
  try {
    if (target_.keep_last) remove_old_iterations(target_.root, *target_.keep_last);
  } catch (const std::exception& e) {
    saved_->note = fmt::format("old checkpoints could not be removed: {}", e.what());
  }
}

}  // namespace braid
