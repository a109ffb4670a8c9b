// The library of the fmt that libtorch's include folder holds, newer than the system's. With FMT_HEADER_ONLY instead,
// each file would compile it again, which takes as long as the file itself.
#include <fmt/format-inl.h>

namespace fmt {
namespace detail {
namespace dragonbox {
template auto to_decimal(float) noexcept -> decimal_fp<float>;
template auto to_decimal(double) noexcept -> decimal_fp<double>;
}  // namespace dragonbox
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
}  // namespace detail
}  // namespace fmt
