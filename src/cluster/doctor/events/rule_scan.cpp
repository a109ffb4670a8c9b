#include "cluster/doctor/events/rule_scan.h"

#include <string>

namespace braid {
namespace {

// What most lines of most logs look like.
constexpr std::string_view kUsual =
    " [2026-11-15 09:40:29.620204] iteration       10/     100 | consumed samples:           80 | elapsed time per "
    "iteration (ms): 639.6 | throughput per GPU (TFLOP/s/GPU): 0.0 | tokens per GPU (tokens/s/GPU): 266.8 | learning "
    "rate: 2.946396E-03 | global batch size:     8 | lm loss: 5.333568E+00 | seq_load_balancing_loss: 1.015603E+00 | "
    "loss scale: 1.0 | grad norm: 1.248 | number of skipped iterations:   0 | number of nan iterations:   0 | time "
    "(ms) | language | waits for images:      10.0 ( 2 %) | forward:   283.9 (44 %) | backward:   259.6 (41 %) | "
    "pipeline wait:    43.7 ( 7 %) | reduce:    10.0 ( 2 %) | optimizer: [rank3]: NCCL INFO Channel 12/0 : 1[2] -> "
    "3[4] [send] via NET/IB/5/GDRDMA Training epoch 0, | reduced_train_loss: | global_step: | validation | loading "
    "shard sample 4711 of shard 00012 has 3211 tokens step 12 INFO root - epoch model layer batch data";

std::vector<std::string> anchors_of(const std::vector<Rule>& rules) {
  std::vector<std::string> anchors;
  for (const Rule& rule : rules) anchors.emplace_back(rule.anchor);
  return anchors;
}

}  // namespace

RuleScan::RuleScan() : rules_(rules()), scan_(anchors_of(rules_), kUsual), tried_(rules_.size(), 0) {}

bool RuleScan::has_anchor(std::string_view text) const {
  bool found = false;
  scan_.each(text, [&](int) { return found = true, false; });
  return found;
}

const Rule* RuleScan::first_fitting(std::string_view text) {
  ++texts_;
  std::size_t best = rules_.size();
  scan_.each(text, [&](int anchor) {
    const auto rule = static_cast<std::size_t>(anchor);
    if (rule >= best || tried_[rule] == texts_) return true;
    tried_[rule] = texts_;
    ++tries_;
    if (fits(rules_[rule], text)) best = rule;
    return true;
  });
  return best < rules_.size() ? &rules_[best] : nullptr;
}

}  // namespace braid
