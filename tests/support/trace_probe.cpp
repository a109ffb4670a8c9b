// Writes a sample trace of one microbatch of text and one of pictures to the folder argv[1]; compare_test.py knows the
// tensors.
#include <ATen/ops/empty.h>
#include "data/batches/sample_trace.h"

namespace braid {
namespace {

void write_traces(const std::string& folder) {
  LanguageBatch text = {.ids = at::empty({12}, at::kLong), .labels = at::empty({12}, at::kLong), .offsets = {0, 5, 12}};
  for (std::int64_t i = 0; i < 12; ++i) {
    text.ids.data_ptr<std::int64_t>()[i] = i;
    text.labels.data_ptr<std::int64_t>()[i] = i % 3 == 0 ? -100 : i + 1;
  }
  SampleTrace(folder, {.lanes = {3}, .global_rank = 12}).add(5, {signature_of(text, 2)});

  EncoderBatch pictures = {
      .values = at::empty({7, 3}, at::kByte), .extents = {{1, 2}, {2, 1}, {3, 1}}, .sample_of = {0, 1, 5}};
  for (int i = 0; i < 21; ++i) pictures.values.data_ptr<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 11 % 256);
  SampleTrace(folder, {.is_encoder = true, .replica = 1, .lanes = {3, 4, 5}, .global_rank = 1})
      .add(5, {signature_of(pictures, {0, 2}), signature_of(pictures, {2, 4}), signature_of(pictures, {4, 6})});
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: trace_probe FOLDER\n");
    return 2;
  }
  braid::write_traces(argv[1]);
}
