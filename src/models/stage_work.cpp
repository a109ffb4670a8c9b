#include "models/stage_work.h"

namespace braid {

const std::vector<std::string>& operator_names() {
  static const std::vector<std::string> names = {"product",
                                                 "product_sum",
                                                 "product_wide",
                                                 "product_fp8",
                                                 "product_fp8_sum",
                                                 "experts",
                                                 "experts_sum",
                                                 "experts_fp8",
                                                 "experts_fp8_sum",
                                                 "attention",
                                                 "attention_backward",
                                                 "scan",
                                                 "scan_backward",
                                                 "stream",
                                                 "norm",
                                                 "norm_backward",
                                                 "gated_norm",
                                                 "gated_norm_backward",
                                                 "convolution",
                                                 "convolution_backward",
                                                 "activation",
                                                 "rows",
                                                 "router",
                                                 "cross_entropy",
                                                 "embedding",
                                                 "quantize",
                                                 "update"};
  return names;
}

Work product_work(Operator op, double rows, double columns, double depth) {
  return {.op = op, .amount = 2 * rows * columns * depth, .size = {rows, columns, depth}};
}

Work stream_work(Operator op, double bytes, double launches) {
  return {.op = op, .amount = bytes, .size = {bytes, 1, 1}, .launches = launches};
}

}  // namespace braid
