// Draws filled shapes with smooth edges on a picture.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/image/image.h"

namespace braid {

struct Colour {
  std::uint8_t red = 0, green = 0, blue = 0;
};

enum class Shape { Circle, Square, Triangle, Diamond, Cross, Ring, Star, Bar };

// Centre and half of the width, in pixels.
struct Spot {
  double x = 0, y = 0, radius = 0;
};

class Canvas {
 public:
  Canvas(PixelSize size, Colour background);

  void fill(Shape shape, const Spot& spot, Colour colour);
  // Mixes the colour into the picture where `coverage` (255: fully) says so; [height, width], top left corner at (x,
  // y).
  void stamp(const std::vector<std::uint8_t>& coverage, PixelSize size, int x, int y, Colour colour);

  const Image& image() const { return image_; }
  Image take() { return std::move(image_); }

 private:
  void mix(int x, int y, Colour colour, double share);

  Image image_;
};

}  // namespace braid
