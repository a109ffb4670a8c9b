#include "optim/optimizer_config.h"

namespace braid {

void describe(Fields& fields, OptimizerConfig& config) {
  fields.field("beta1", config.beta1, "decay of Adam's first moment");
  fields.field("beta2", config.beta2, "decay of Adam's second moment");
  fields.field("eps", config.eps, "added to the root of Adam's second moment");
  fields.field("clip_grad", config.clip_grad, "largest global gradient norm; 0: no clipping");
  fields.field("zero", config.zero, "each rank updates and remembers only its share of the parameters");
  fields.field("overlap_grad_reduce", config.overlap_grad_reduce, "reduce gradients during the last backward");
  fields.field("bucket_size", config.bucket_size,
               "elements per bucket, 0: one bucket; default: one bucket without overlap, else by the group's size");
  fields.field("pad_buckets", config.pad_buckets, "pad buckets to 2^16 elements, which NCCL moves faster");
}

}  // namespace braid
