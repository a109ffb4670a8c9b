#include "paper/work.h"

#include "base/strings.h"

namespace braid {

const std::vector<std::string>& operator_names() {
  static const std::vector<std::string> names = split(
      "product product_sum product_wide product_fp8 product_fp8_sum experts experts_sum experts_fp8 experts_fp8_sum "
      "attention attention_backward scan scan_backward router router_backward stream norm norm_backward gated_norm "
      "gated_norm_backward convolution convolution_backward activation activation_backward rows cross_entropy "
      "cross_entropy_backward quantize quantize_rows quantize_activation quantize_activation_backward update",
      ' ');
  return names;
}

Work product_work(Operator op, double rows, double columns, double depth) {
  return {.op = op, .amount = 2 * rows * columns * depth, .size = {rows, columns, depth}};
}

Work stream_work(Operator op, double bytes, double launches) {
  return {.op = op, .amount = bytes, .size = {bytes, 1, 1}, .launches = launches};
}

Works in_microbatch(const Works& works, bool is_first) {
  Works kept;
  for (const Work& work : works)
    if (work.when == When::Always || (work.when == When::FirstMicrobatch) == is_first) kept.push_back(work);
  for (Work& work : kept) work.when = When::Always;
  return kept;
}

}  // namespace braid
