// JPEG through libjpeg. It reports errors by longjmp, which runs no destructors: between setjmp and the last call of
// libjpeg there are no objects that have one.
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <new>
#include <vector>

// jpeglib.h needs <cstdio> before it.
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include "data/image/formats.h"

namespace braid {
namespace {

// Real progressive images have tens of scans. Each scan visits the whole image, so a small file of very many scans
// could keep a decoder busy for hours.
constexpr int kMostScans = 500;

class Decompressor {
 public:
  explicit Decompressor(Bytes bytes) {
    jpeg_.err = jpeg_std_error(&errors_);
    jpeg_.client_data = this;
    errors_.error_exit = [](j_common_ptr jpeg) {
      auto* self = static_cast<Decompressor*>(jpeg->client_data);
      (*jpeg->err->format_message)(jpeg, self->message_);
      std::longjmp(self->failure_, 1);
    };
    errors_.emit_message = [](j_common_ptr, int) {};  // warnings; the default prints them
    source_.init_source = [](j_decompress_ptr) {};
    source_.term_source = [](j_decompress_ptr) {};
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.fill_input_buffer = [](j_decompress_ptr) -> boolean { return FALSE; };  // there is no more: suspend
    source_.skip_input_data = skip;
    source_.next_input_byte = bytes.data();
    source_.bytes_in_buffer = bytes.size();
    progress_.progress_monitor = [](j_common_ptr jpeg) {
      if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kMostScans) return;
      auto* self = static_cast<Decompressor*>(jpeg->client_data);
      std::snprintf(self->message_, sizeof(self->message_), "more than %d scans", kMostScans);
      std::longjmp(self->failure_, 1);
    };
    call([&] {
      jpeg_create_decompress(&jpeg_);
      jpeg_.src = &source_;
      jpeg_.progress = &progress_;
      return true;
    });
  }
  Decompressor(const Decompressor&) = delete;
  ~Decompressor() { jpeg_destroy_decompress(&jpeg_); }

  jpeg_decompress_struct& jpeg() { return jpeg_; }

  // Calls functions of libjpeg. `body` returns whether they had enough input, and must not create objects with
  // destructors.
  template <class Body>
  void call(const Body& body) {
    if (setjmp(failure_) != 0) {
      if (errors_.msg_code == JERR_OUT_OF_MEMORY) throw std::bad_alloc();  // says nothing about the image
      throw DataError(fmt::format("damaged JPEG: {}", message_));
    }
    if (!body()) throw DataError("the JPEG file ends early");
  }

 private:
  static void skip(j_decompress_ptr jpeg, long count) {
    if (count <= 0) return;
    const std::size_t skipped = std::min(static_cast<std::size_t>(count), jpeg->src->bytes_in_buffer);
    jpeg->src->next_input_byte += skipped;
    jpeg->src->bytes_in_buffer -= skipped;
  }

  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf failure_{};
  char message_[JMSG_LENGTH_MAX] = {};
};

// The smallest eighth of 1, 2, 4 and 8 (which libjpeg has fast code for) at which both sides reach the target.
unsigned eighths_for(PixelSize stored, PixelSize target) {
  const auto reaches = [](int side, unsigned eighths, int wanted) {
    return (std::int64_t{side} * eighths + 7) / 8 >= wanted;
  };
  for (const unsigned eighths : {1u, 2u, 4u})
    if (reaches(stored.width, eighths, target.width) && reaches(stored.height, eighths, target.height)) return eighths;
  return 8;
}

// Four inverted inks, as Adobe's programs store them, to RGB; x * y / 255 is rounded to the nearest.
void cmyk_to_rgb(const std::uint8_t* inverted, int width, std::uint8_t* rgb) {
  for (int x = 0; x < width; ++x, inverted += 4, rgb += 3)
    for (int channel = 0; channel < 3; ++channel) {
      const int black = inverted[3], product = (255 - inverted[channel]) * black + 128;
      rgb[channel] = static_cast<std::uint8_t>(black - ((product + (product >> 8)) >> 8));
    }
}

Image read_rows(Decompressor& decompressor, bool is_cmyk) {
  jpeg_decompress_struct& jpeg = decompressor.jpeg();
  Image image({static_cast<int>(jpeg.output_width), static_cast<int>(jpeg.output_height)});
  std::vector<std::uint8_t> inks(is_cmyk ? std::size_t{4} * jpeg.output_width : 0);
  decompressor.call([&] {
    while (jpeg.output_scanline < jpeg.output_height) {
      std::uint8_t* rgb = image.row(static_cast<int>(jpeg.output_scanline));
      JSAMPROW row = is_cmyk ? inks.data() : rgb;
      if (jpeg_read_scanlines(&jpeg, &row, 1) == 0) return false;
      if (is_cmyk) cmyk_to_rgb(inks.data(), image.size().width, rgb);
    }
    return true;
  });
  return image;
}

}  // namespace

Image decode_jpeg(Bytes bytes, PixelSize stored, std::optional<PixelSize> scale_for) {
  Decompressor decompressor(bytes);
  jpeg_decompress_struct& jpeg = decompressor.jpeg();
  decompressor.call([&] { return jpeg_read_header(&jpeg, TRUE) == JPEG_HEADER_OK; });
  // The limit on pixels was checked with the size that read_header found.
  if (PixelSize{static_cast<int>(jpeg.image_width), static_cast<int>(jpeg.image_height)} != stored)
    throw DataError("damaged JPEG: two different sizes");
  const bool is_cmyk = jpeg.num_components == 4;
  jpeg.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  if (scale_for) {
    jpeg.scale_num = eighths_for(stored, *scale_for);
    jpeg.scale_denom = 8;
    jpeg.dct_method = JDCT_IFAST;
  }
  decompressor.call([&] { return jpeg_start_decompress(&jpeg) != FALSE; });
  return read_rows(decompressor, is_cmyk);
}

}  // namespace braid
