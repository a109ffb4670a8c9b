// An image in memory: 8-bit RGB, rows from top to bottom, without gaps between rows; its orientation and its size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

namespace braid {

struct PixelSize {
  int width = 0, height = 0;
  std::int64_t pixels() const { return std::int64_t{width} * height; }
  bool operator==(const PixelSize&) const = default;
};

class Image {
 public:
  Image() = default;
  // The pixels have no defined values until they are written.
  explicit Image(PixelSize size) : size_(size), data_(allocate(byte_count() + kSlack)) {}

  PixelSize size() const { return size_; }
  std::size_t row_bytes() const { return static_cast<std::size_t>(size_.width) * 3; }
  std::size_t byte_count() const { return row_bytes() * static_cast<std::size_t>(size_.height); }
  std::uint8_t* row(int y) { return data_.get() + row_bytes() * static_cast<std::size_t>(y); }
  const std::uint8_t* row(int y) const { return data_.get() + row_bytes() * static_cast<std::size_t>(y); }
  std::span<std::uint8_t> pixels() { return {data_.get(), byte_count()}; }              // [height, width, 3]
  std::span<const std::uint8_t> pixels() const { return {data_.get(), byte_count()}; }  // [height, width, 3]

  // Bytes allocated after the last row: vector code loads and stores whole registers past the end of a row.
  static constexpr std::size_t kSlack = 64;

 private:
  struct Free {
    void operator()(std::uint8_t* data) const { std::free(data); }
  };
  using Data = std::unique_ptr<std::uint8_t[], Free>;

  // Asks for large pages for large images: 36 MB would otherwise cost 9000 page faults, a fifth of decoding a JPEG.
  static Data allocate(std::size_t bytes);

  PixelSize size_;
  Data data_;
};

// The image as it is meant to be seen; `orientation`: of EXIF, 1 to 8.
Image oriented(Image stored, int orientation);

enum class ResizeFilter { Bicubic, Bilinear };
constexpr auto choice_names(ResizeFilter) { return std::array{"bicubic", "bilinear"}; }

// Pillow's antialiased resizing of 8-bit images, with its exact results: weights in fixed point, a pass over the rows
// and one over the columns, each rounded to 8 bits. `size` has at least one pixel per side.
Image resize(const Image& image, PixelSize size, ResizeFilter filter);

// Weights are in units of 2^-22, so that a sum of 8-bit pixels times weights fits 32 bits.
inline constexpr int kWeightBits = 22;

// Which pixels a resized pixel is computed from, along one axis.
struct ResizeWeights {
  struct Window {
    int first, count;
  };
  // Output i is the sum of of(i)[k] * input[windows[i].first + k] for k < windows[i].count.
  std::vector<Window> windows{};
  std::vector<std::int32_t> values{};
  int stride = 0;  // of `values`, per output; a multiple of 4, and the values after `count` are 0

  int outputs() const { return static_cast<int>(windows.size()); }
  const std::int32_t* of(int output) const { return values.data() + std::int64_t{output} * stride; }
};
ResizeWeights resize_weights(ResizeFilter filter, int inputs, int outputs);

}  // namespace braid
