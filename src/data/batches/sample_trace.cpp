#include "data/batches/sample_trace.h"
#include <fmt/ranges.h>
#include "base/blake2b.h"
#include "base/error.h"
#include "base/ignored_label.h"

namespace braid {
namespace {

std::string_view python_type(at::ScalarType type) {
  switch (type) {
    case at::kByte: return "torch.uint8";
    case at::kInt: return "torch.int32";
    case at::kLong: return "torch.int64";
    case at::kBFloat16: return "torch.bfloat16";
    case at::kFloat: return "torch.float32";
    case at::kDouble: return "torch.float64";
    default: throw_check_failed(__FILE__, __LINE__, "no reader gives tensors of this type");
  }
}

// Shapes have Python's notation: (5,), (1, 5).
std::uint64_t hash_of(const std::vector<std::int64_t>& shape, at::ScalarType type, std::span<const std::byte> bytes) {
  if (bytes.empty()) return 0;
  Blake2b64 hash;
  hash.add(fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : ""));
  hash.add(python_type(type));
  hash.add(bytes);
  return hash.digest();
}

std::span<const std::byte> bytes_in(const at::Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

constexpr std::uint64_t kModulus = 2147483647;

// The fork folds the values of the packing's fields in the order of their names.
std::int64_t packing_checksum(const std::vector<std::int64_t>& offsets) {
  const std::vector<std::int32_t> borders(offsets.begin(), offsets.end());
  const std::uint64_t hash = hash_of({std::ssize(borders)}, at::kInt, std::as_bytes(std::span(borders)));
  std::uint64_t longest = 0, format = 0;
  for (std::size_t i = 1; i < offsets.size(); ++i)
    longest = std::max(longest, static_cast<std::uint64_t>(offsets[i] - offsets[i - 1]));
  for (const char c : std::string_view("thd")) format += static_cast<unsigned char>(c);
  const std::uint64_t values[] = {hash,
                                  hash,
                                  hash,
                                  hash,  // cu_seqlens_kv, _kv_padded, _q, _q_padded
                                  longest,
                                  longest,
                                  format,  // max_seqlen_kv, max_seqlen_q, qkv_format
                                  static_cast<std::uint64_t>(offsets.back())};  // total_tokens
  std::uint64_t checksum = 0;
  for (const std::uint64_t value : values) checksum = (131 * checksum + value % kModulus) % kModulus;
  return static_cast<std::int64_t>(checksum);
}

std::string path_of(const std::string& folder, const SampleTrace::Reader& reader) {
  const std::string role = !reader.is_encoder       ? "llm"
                           : reader.encoder.empty() ? "encoder"
                                                    : "encoder_" + reader.encoder;
  const std::string place = reader.lanes.size() == 1 ? fmt::format("lane{:03}", reader.lanes.front())
                                                     : fmt::format("dprank{:03}_lanes{:03}-{:03}", reader.replica,
                                                                   reader.lanes.front(), reader.lanes.back());
  return fmt::format("{}/train_dataloader_{}_{}.rank{:05}.jsonl", folder, role, place, reader.global_rank);
}

}  // namespace

SampleSignature signature_of(const LanguageBatch& batch, std::int64_t samples) {
  const at::Tensor ids = batch.ids.contiguous(), labels = batch.labels.contiguous();
  const std::vector<std::int64_t> shape = {samples, ids.numel() / samples};
  const auto* label = labels.const_data_ptr<std::int64_t>();
  return {.ids = hash_of(shape, ids.scalar_type(), bytes_in(ids)),
          .labels = hash_of(shape, labels.scalar_type(), bytes_in(labels)),
          .targets = labels.numel() - std::count(label, label + labels.numel(), kIgnoredLabel),
          .packing = packing_checksum(batch.offsets)};
}

SampleSignature signature_of(const EncoderBatch& batch, const SampleRange& samples) {
  std::int64_t begin = 0, rows = 0;
  for (std::size_t i = 0; i < batch.extents.size(); ++i) {
    if (batch.sample_of[i] < samples.begin) begin += input_rows(batch.extents[i]);
    if (batch.sample_of[i] >= samples.begin && batch.sample_of[i] < samples.end) rows += input_rows(batch.extents[i]);
  }
  if (rows == 0) return {};
  const at::Tensor values = batch.values.contiguous();
  const std::size_t row_bytes = values.nbytes() / index(values.size(0));
  return {.image_size = 1,
          .images = hash_of({1, rows, values.size(1)}, values.scalar_type(),
                            bytes_in(values).subspan(index(begin) * row_bytes, index(rows) * row_bytes))};
}

SampleTrace::SampleTrace(const std::string& folder, Reader reader)
    : reader_(std::move(reader)), path_(path_of(folder, reader_)) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  file_.open(path_, std::ios::app | std::ios::binary);
  if (!file_) throw DataError(fmt::format("cannot open the sample trace '{}': {}", path_, std::strerror(errno)));
}

void SampleTrace::add(std::int64_t step, const std::vector<SampleSignature>& signatures) {
  std::vector<std::string> texts;
  for (const auto& [ids, labels, targets, image_size, images, packing] : signatures)
    texts.push_back(fmt::format("[{}, {}, {}, {}, {}, {}]", ids, labels, targets, image_size, images, packing));
  file_ << fmt::format("{{\"llm_lanes\": [{}], \"role\": \"{}\", \"signatures\": [{}], \"step\": {}}}\n",
                       fmt::join(reader_.lanes, ", "), reader_.is_encoder ? "encoder" : "llm", fmt::join(texts, ", "),
                       step)
        << std::flush;
  if (!file_) throw DataError(fmt::format("cannot write the sample trace '{}': {}", path_, std::strerror(errno)));
}

}  // namespace braid
