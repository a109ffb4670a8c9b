// The mean and standard deviation by which an image encoder expects its pixels to be normalized, by channel, for pixels
// from 0 to 1. No libtorch here.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace braid {

struct PixelStats {
  std::string name;
  std::array<double, 3> mean, std;
};

inline const std::vector<PixelStats>& all_pixel_stats() {
  static const std::vector<PixelStats> all = {
      {"clip", {0.48145466, 0.4578275, 0.40821073}, {0.26862954, 0.26130258, 0.27577711}},
      {"siglip", {0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}},
      {"imagenet", {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}},
      {"radio-g", {0.485, 0.456, 0.406}, {0.223, 0.224, 0.225}},
      {"none", {0, 0, 0}, {1, 1, 1}}};
  return all;
}

}  // namespace braid
