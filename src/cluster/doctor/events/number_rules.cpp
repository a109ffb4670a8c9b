// What went wrong by itself: losses and gradients that are not finite.
#include "cluster/doctor/events/signs.h"

namespace braid {
namespace {

constexpr Rule kRules[] = {
    {"oss is nan", Sign::NanLoss},
    {"oss is NaN", Sign::NanLoss},
    {"oss is inf", Sign::NanLoss, nullptr, "inform"},
    {"oss is Nan", Sign::NanLoss},
    {"oss became nan", Sign::NanLoss},
    {"oss became NaN", Sign::NanLoss},
    {"oss: nan, stopping", Sign::NanLoss},
    {"oss nan, stopping", Sign::NanLoss},
    {"NaN loss", Sign::NanLoss},
    {"nan loss", Sign::NanLoss, nullptr, "nan losses"},
    {"NaN in l", Sign::NanLoss},  // Megatron: "found NaN in local grad norm"
    {"found NaN", Sign::NanLoss},
    {"found nan", Sign::NanLoss, nullptr, "skipping"},
    {"found Inf in", Sign::NanLoss},
    {"Unexpected result nan", Sign::NanLoss},
    {"Unexpected result inf", Sign::NanLoss},
    {"oss is not finite", Sign::NanLoss},
    {"oss is NAN", Sign::NanLoss},
    {"oss=nan", Sign::NanLoss, "top"},
    {"NaN or Inf", Sign::NanLoss, "Error"},
    {"nan or inf", Sign::NanLoss, "Error"},
    {"NaN/Inf", Sign::NanLoss, "Error"},
    {"nan/inf", Sign::NanLoss, "Error"},
    {"inf or nan", Sign::NanLoss, "Error"},
    {"Inf or NaN", Sign::NanLoss, "Error"},
    {"encountered NaN", Sign::NanLoss},
    {"ncountered nan", Sign::NanLoss},
    {"Gradient overflow", Sign::NanLoss, "Error"},
    {"gradients at all steps are invalid", Sign::NanLoss},  // ESPnet
    {"ContainsNaN", Sign::NanLoss},
    {"ontains NaN", Sign::NanLoss, "rror"},
    {"ontains nan", Sign::NanLoss, "rror"},
    {"Monitored metric", Sign::NanLoss, "is not finite"},  // Lightning
    {"Model diverged with loss = NaN", Sign::NanLoss},     // TensorFlow
    {"NanLossDuringTrainingError", Sign::NanLoss},
    {"Tensor had NaN", Sign::NanLoss},
    {"Tensor had Inf", Sign::NanLoss},
    {"invalid value (nan)", Sign::NanLoss},
    {"TerminateOnNaN", Sign::NanLoss},
    {"oss diverged", Sign::NanLoss},
    {"inimum loss scale", Sign::NanLoss},
    {"onsecutive skipped", Sign::NanLoss, "scale"},
    {"overflow detected", Sign::NanLoss, "xit"},
    {"NaN detected", Sign::NanLoss},
    {"due to NaN", Sign::NanLoss, "raining"},
    {"due to nan", Sign::NanLoss, "raining"},
    {"NaNs detected", Sign::NanLoss},
    {"detected NaN", Sign::NanLoss},
    {"Nan detected", Sign::NanLoss},
    {"nan detected", Sign::NanLoss},
    {"is nan or inf", Sign::NanLoss},
    {"NaN or Inf ", Sign::NanLoss, "Error"},
    {"returned nan values", Sign::NanLoss},
    {"oss scale already at minimum", Sign::NanLoss},
    {"oss scale is at its minimum", Sign::NanLoss},
    {"cale is too small", Sign::NanLoss},
    {"cale reached minimum", Sign::NanLoss},
    {"oss scale has reached its minimum", Sign::NanLoss},
    {"non-finite", Sign::NanLoss, "Error"},
    {"on-finite loss", Sign::NanLoss},
    {"not finite", Sign::NanLoss, "oss"},
    {"not finite", Sign::NanLoss, "rad"},
    {"on-finite grad", Sign::NanLoss},
    {"contains either `inf`, `nan`", Sign::NanLoss},
    {"Invalid loss, terminating", Sign::NanLoss},  // Keras
    {"raining diverged", Sign::NanLoss},
    {"infinite or NaN", Sign::NanLoss},
};

}  // namespace

std::span<const Rule> number_rules() { return kRules; }

}  // namespace braid
