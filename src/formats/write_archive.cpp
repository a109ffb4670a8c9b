#include <caffe2/serialize/inline_container.h>
#include "formats/torch_archive.h"

namespace braid {

void write_archive(const PickleValue& value, std::optional<std::span<const std::byte>> storage,
                   const ArchiveSink& sink) {
  const std::string pickle = write_pickle(value);
  constexpr std::string_view kByteOrder = "little";
  std::exception_ptr error;
  // libtorch calls this from C, which exceptions must not cross. After an error the rest is discarded:
  // PyTorchStreamWriter's destructor ends the program if a write fails.
  const auto write = [&](const void* data, std::size_t n) {
    try {
      if (!error) sink({static_cast<const std::byte*>(data), n});
    } catch (...) {
      error = std::current_exception();
    }
    return n;
  };
  {
    // torch.load ignores the zip's CRC-32, which would take longer than everything else.
    caffe2::serialize::PyTorchStreamWriter writer(write, /*compute_crc32=*/!storage);
    writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    writer.writeRecord("byteorder", kByteOrder.data(), kByteOrder.size());
    if (storage) writer.writeRecord("data/0", storage->data(), storage->size());
    writer.writeEndOfFile();
  }
  if (error) std::rethrow_exception(error);
}

std::string write_archive(const PickleValue& value) {
  std::string bytes;
  write_archive(value, std::nullopt, [&](std::span<const std::byte> part) {
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  });
  return bytes;
}

}  // namespace braid
