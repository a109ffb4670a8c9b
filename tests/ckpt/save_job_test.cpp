#include "ckpt/save_job.h"
#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace braid {
namespace {

// A synchronous save writes tensors without a copy.
TEST(SaveJob, CopiesOnlyWhatWouldChangeMeanwhile) {
  const at::Tensor whole = at::arange(6, at::kFloat).view({2, 3});
  const std::vector<KeyedTensor> tensors = {{"a", {2, 3}, {0, 0}, whole}, {"b", {3, 2}, {0, 0}, whole.t()}};
  const std::vector<KeyedTensor> copied = copied_to_host(tensors), taken = taken_to_host(tensors);
  for (const std::vector<KeyedTensor>& host : {copied, taken})
    for (std::size_t i = 0; i < tensors.size(); ++i)
      EXPECT_TRUE(host[i].value.is_contiguous() && host[i].value.equal(tensors[i].value));
  EXPECT_NE(copied[0].value.const_data_ptr(), whole.const_data_ptr());
  EXPECT_EQ(taken[0].value.const_data_ptr(), whole.const_data_ptr());
}

}  // namespace
}  // namespace braid
