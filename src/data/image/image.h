// An image in memory: 8-bit RGB, rows from top to bottom, without gaps between rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

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

}  // namespace braid
