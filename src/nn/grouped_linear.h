#pragma once

#include <string>

#include "nn/linear.h"
#include "ops/grouped_linear.h"

namespace braid {

// The linear maps of this rank's experts: of its ep share of them, in the features that expt_tp leaves to this rank.
// Split::Columns computes this rank's output features of a row, Split::Rows its partial sums, which
// ExpertExchange::combine() adds up over expt_tp. Backward adds each expert's weight gradient directly to its slice of
// the weight's GradientSum, if the optimizer keeps one.
class GroupedLinear {
 public:
  // From the parameter `prefix`weight, [experts, Out, In]. `pieces`: how often it is called for a microbatch.
  GroupedLinear(const Parameters& parameters, const std::string& prefix, Split split, int pieces = 1);

  at::Tensor operator()(const Recomputable& rows, const ExpertRows& experts,
                        Result result = Result::Needed) const;  // [R, In] -> [R, Out]
  const Weight& weight() const { return weight_; }

 private:
  Weight weight_;
};

}  // namespace braid
