// PNG through libpng. It reports errors by longjmp, which runs no destructors: between setjmp and the last call of
// libpng there are no objects that have one.
#include <png.h>

#include <csetjmp>
#include <cstring>
#include <new>
#include <string_view>
#include <vector>

#include "data/image/formats.h"

namespace braid {
namespace {

class PngReader {
 public:
  explicit PngReader(Bytes bytes) : rest_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, [](png_structp, png_const_charp) {});
    info_ = png_ != nullptr ? png_create_info_struct(png_) : nullptr;
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::runtime_error("libpng could not start: out of memory, or another version than its headers");
    }
    png_set_read_fn(png_, this, read);
  }
  PngReader(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }

  png_structp png() { return png_; }
  png_infop info() { return info_; }

  // Calls functions of libpng. `body` must not create objects with destructors.
  template <class Body>
  void call(const Body& body) {
    if (setjmp(failure_) != 0) {
      const std::string_view message = message_;
      // libpng's and zlib's words; they say nothing about the image.
      if (message.ends_with("ut of memory") || message == "insufficient memory") throw std::bad_alloc();
      throw DataError(fmt::format("damaged PNG: {}", message));
    }
    body();
  }

 private:
  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::strncpy(self->message_, message, sizeof(self->message_) - 1);
    std::longjmp(self->failure_, 1);
  }
  static void read(png_structp png, png_bytep into, std::size_t count) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self->rest_.size()) fail(png, "the file ends early");
    std::memcpy(into, self->rest_.data(), count);
    self->rest_ = self->rest_.subspan(count);
  }

  Bytes rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf failure_{};
  char message_[128] = {};
};

// An interlaced image takes seven passes, each of which completes the rows of those before.
void read_rows(PngReader& reader, std::uint8_t* first, std::size_t row_bytes, int height) {
  reader.call([&] {
    const int passes = png_set_interlace_handling(reader.png());
    png_read_update_info(reader.png(), reader.info());
    if (png_get_rowbytes(reader.png(), reader.info()) != row_bytes)
      png_error(reader.png(), "rows of unexpected length");
    for (int pass = 0; pass < passes; ++pass)
      for (int y = 0; y < height; ++y) png_read_row(reader.png(), first + row_bytes * y, nullptr);
  });
}

// 16-bit greys are big-endian. Pillow clips them, where other 16-bit samples lose their lower byte.
Image read_deep_grey(PngReader& reader, PixelSize size) {
  const std::size_t row_bytes = std::size_t{2} * size.width;
  std::vector<std::uint8_t> greys(row_bytes * size.height);
  read_rows(reader, greys.data(), row_bytes, size.height);
  Image image(size);
  std::uint8_t* rgb = image.pixels().data();
  for (std::size_t i = 0; i < greys.size(); i += 2, rgb += 3) std::memset(rgb, greys[i] != 0 ? 255 : greys[i + 1], 3);
  return image;
}

}  // namespace

Image decode_png(Bytes bytes, PixelSize stored) {
  PngReader reader(bytes);
  reader.call([&] {
    // Texts, profiles and the like may be compressed bombs; none changes the pixels.
    png_set_keep_unknown_chunks(reader.png(), PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(reader.png(), reader.info());
  });
  const png_byte colour = png_get_color_type(reader.png(), reader.info());
  const png_byte bits = png_get_bit_depth(reader.png(), reader.info());
  if (colour == PNG_COLOR_TYPE_GRAY && bits == 16) return read_deep_grey(reader, stored);
  reader.call([&] {
    if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(reader.png());
    if (colour == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(reader.png());
    if (bits == 16) png_set_strip_16(reader.png());
    if ((colour & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(reader.png());
    png_set_strip_alpha(reader.png());
  });
  Image image(stored);
  read_rows(reader, image.pixels().data(), image.row_bytes(), stored.height);
  return image;
}

std::string encode_png(const Image& image) {
  png_image description{};
  description.version = PNG_IMAGE_VERSION;
  description.width = static_cast<png_uint_32>(image.size().width);
  description.height = static_cast<png_uint_32>(image.size().height);
  description.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(description);
  std::string file(size, '\0');
  const int done = png_image_write_to_memory(&description, file.data(), &size, 0, image.pixels().data(), 0, nullptr);
  BRAID_CHECK(done != 0, "libpng: {}", description.message);
  file.resize(size);
  return file;
}

}  // namespace braid
