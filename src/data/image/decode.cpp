// JPEG is a sequence of markers, most with a length. The size is in the frame header (SOF), EXIF in APP1; both precede
// the first scan (SOS).
// PNG is a signature, then chunks of length, type, data and checksum. IHDR comes first; eXIf may be anywhere.
// WebP is a RIFF container. A simple file is one VP8 (lossy) or VP8L (lossless) chunk. An extended one begins with
// VP8X, which has the size of the canvas; the image or the frames of an animation (ANMF) and EXIF are chunks after it.
// EXIF is a TIFF file: byte order, offset of a directory, 12 bytes per entry.
// Pixels are decoded by libjpeg, libpng and libwebp. Without one of them, its images are refused.
#include "data/image/decode.h"
#include <csetjmp>
#include <new>

#ifdef BRAID_HAS_JPEG
// jpeglib.h needs <cstdio> before it.
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on
#endif
#ifdef BRAID_HAS_PNG
#include <png.h>
#endif
#ifdef BRAID_HAS_WEBP
#include <webp/decode.h>
#endif

#include "base/error.h"

namespace braid {
namespace {

// Reading past the end is a DataError.
Bytes slice(Bytes bytes, std::size_t offset, std::size_t count) {
  if (offset > bytes.size() || count > bytes.size() - offset)
    throw DataError(fmt::format("the file ends early, after {} bytes", bytes.size()));
  return bytes.subspan(offset, count);
}

std::uint32_t big_endian(Bytes bytes, std::size_t offset, std::size_t count) {
  std::uint32_t value = 0;
  for (const std::uint8_t byte : slice(bytes, offset, count)) value = value << 8 | byte;
  return value;
}

std::uint32_t little_endian(Bytes bytes, std::size_t offset, std::size_t count) {
  const Bytes part = slice(bytes, offset, count);
  std::uint32_t value = 0;
  for (std::size_t i = count; i-- > 0;) value = value << 8 | part[i];
  return value;
}

bool has_text(Bytes bytes, std::size_t offset, std::string_view text) {
  return offset <= bytes.size() && text.size() <= bytes.size() - offset &&
         std::memcmp(bytes.data() + offset, text.data(), text.size()) == 0;
}

// EXIF.
constexpr std::uint32_t kOrientationTag = 0x0112, kByte = 1, kShort = 3, kLong = 4;

int orientation_of(Bytes tiff, std::uint32_t (*number)(Bytes, std::size_t, std::size_t)) {
  const std::size_t directory = number(tiff, 4, 4);
  const std::uint32_t entries = number(tiff, directory, 2);
  for (std::uint32_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + std::size_t{12} * i;
    if (number(tiff, entry, 2) != kOrientationTag) continue;
    const std::uint32_t type = number(tiff, entry + 2, 2);
    if (type != kByte && type != kShort && type != kLong) return 1;
    const std::uint32_t value = number(tiff, entry + 8, type == kByte ? 1 : type == kShort ? 2 : 4);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

// The orientation in a TIFF structure, with or without the text "Exif" before it; 1 if it has no valid one.
int exif_orientation(Bytes exif) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  while (has_text(exif, 0, kPrefix)) exif = exif.subspan(kPrefix.size());  // some writers of WebP repeat it
  try {
    if (has_text(exif, 0, {"II*\0", 4})) return orientation_of(exif, little_endian);
    if (has_text(exif, 0, {"MM\0*", 4})) return orientation_of(exif, big_endian);
  } catch (const DataError&) {  // damaged metadata does not make the image unusable
  }
  return 1;
}

// JPEG.
constexpr std::uint32_t kTem = 0x01, kRst0 = 0xd0, kSoi = 0xd8, kEoi = 0xd9, kSos = 0xda, kApp1 = 0xe1;

bool is_frame(std::uint32_t marker) {  // SOF0 to SOF15; DHT, JPG and DAC lie among them
  return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

// Moves `at` behind the next marker. Bytes before it and fill bytes are skipped, as decoders do.
std::uint32_t next_marker(Bytes bytes, std::size_t& at) {
  for (;;) {
    while (big_endian(bytes, at, 1) != 0xff) ++at;
    while (big_endian(bytes, at, 1) == 0xff) ++at;
    const std::uint32_t marker = bytes[at++];
    if (marker != 0) return marker;
  }
}

PixelSize frame_size(std::uint32_t marker, Bytes segment) {
  const std::uint32_t precision = big_endian(segment, 0, 1), components = big_endian(segment, 5, 1);
  const bool is_coded_as_usual = marker <= 0xc2 || marker == 0xc9 || marker == 0xca;  // sequential or progressive
  if (!is_coded_as_usual || precision != 8)
    throw DataError(fmt::format("JPEG of {} bits in coding process {} is not supported", precision, marker - 0xc0));
  if (components != 1 && components != 3 && components != 4)
    throw DataError(fmt::format("JPEG of {} components is not supported", components));
  return {static_cast<int>(big_endian(segment, 3, 2)), static_cast<int>(big_endian(segment, 1, 2))};
}

ImageHeader jpeg_header(Bytes bytes) {
  std::optional<PixelSize> size;
  std::optional<int> orientation;
  for (std::size_t at = 2;;) {
    const std::uint32_t marker = next_marker(bytes, at);
    if (marker == kTem || (marker >= kRst0 && marker < kSoi)) continue;  // these have no length
    if (marker == kSos || marker == kEoi) break;
    const std::uint32_t length = big_endian(bytes, at, 2);
    if (length < 2) throw DataError(fmt::format("JPEG segment of invalid length at byte {}", at));
    const Bytes segment = slice(bytes, at + 2, length - 2);
    if (is_frame(marker) && !size) size = frame_size(marker, segment);
    if (marker == kApp1 && !orientation && has_text(segment, 0, {"Exif\0\0", 6}))
      orientation = exif_orientation(segment);
    at += length;
  }
  if (!size) throw DataError("JPEG without a frame header");
  return {.format = ImageFormat::Jpeg, .stored = *size, .orientation = orientation.value_or(1)};
}

// PNG.
constexpr std::size_t kSignature = 8, kChunkFrame = 12;
constexpr std::uint32_t kLongestSide = 1'000'000;  // libpng's limit; sides in the other formats are below 2^24

// What follows the image's data may be damaged: decoders do not read it.
int png_orientation(Bytes bytes) {
  for (std::size_t at = kSignature; at + kChunkFrame <= bytes.size();) {
    const std::size_t length = big_endian(bytes, at, 4);
    if (length > bytes.size() - at - kChunkFrame) break;
    if (has_text(bytes, at + 4, "eXIf")) return exif_orientation(bytes.subspan(at + 8, length));
    at += kChunkFrame + length;
  }
  return 1;
}

ImageHeader png_header(Bytes bytes) {
  if (big_endian(bytes, 8, 4) != 13 || !has_text(bytes, 12, "IHDR"))
    throw DataError("PNG that does not begin with IHDR");
  const std::uint32_t width = big_endian(bytes, 16, 4), height = big_endian(bytes, 20, 4);
  if (width > kLongestSide || height > kLongestSide)
    throw DataError(fmt::format("{} x {} pixels: a side is longer than {}", width, height, kLongestSide));
  return {.format = ImageFormat::Png,
          .stored = {static_cast<int>(width), static_cast<int>(height)},
          .orientation = png_orientation(bytes)};
}

// WebP.
constexpr std::size_t kChunkHeader = 8;
constexpr std::uint32_t kExifFlag = 0x08;

struct Chunk {
  Bytes data{};
  std::size_t begin = 0, end = 0;  // `end` includes the padding to an even size
};

Chunk chunk_at(Bytes file, std::size_t begin) {
  const std::size_t length = little_endian(file, begin + 4, 4);
  return {slice(file, begin + kChunkHeader, length), begin, begin + kChunkHeader + length + length % 2};
}

// A WebP file holds one image, or an animation of which only the first frame is of interest.
struct WebpFrame {
  ImageHeader header{};
  Bytes bitstream{};  // the VP8 or VP8L data; alpha is stored elsewhere
  PixelSize size{};   // of the bitstream
  int left = 0, top = 0;
};

int size_at(Bytes data, std::size_t offset) { return static_cast<int>(little_endian(data, offset, 3)) + 1; }

bool take_bitstream(Bytes file, const Chunk& chunk, WebpFrame& frame) {
  const bool is_lossless = has_text(file, chunk.begin, "VP8L");
  if (!is_lossless && !has_text(file, chunk.begin, "VP8 ")) return false;
  const Bytes data = frame.bitstream = chunk.data;
  if (is_lossless) {
    if (little_endian(data, 0, 1) != 0x2f) throw DataError("WebP whose VP8L data has no signature");
    const std::uint32_t bits = little_endian(data, 1, 4);
    frame.size = {static_cast<int>(bits & 0x3fff) + 1, static_cast<int>(bits >> 14 & 0x3fff) + 1};
  } else {
    const std::uint32_t tag = little_endian(data, 0, 3);
    if (tag % 2 != 0 || !has_text(data, 3, "\x9d\x01\x2a")) throw DataError("WebP whose VP8 data is not a key frame");
    const auto side = [&](std::size_t offset) { return static_cast<int>(little_endian(data, offset, 2) & 0x3fff); };
    frame.size = {side(6), side(8)};
  }
  return true;
}

// A frame of an animation: position, size, duration and flags, then chunks as in a file.
void take_first_frame(Bytes data, WebpFrame& frame) {
  frame.left = 2 * static_cast<int>(little_endian(data, 0, 3));
  frame.top = 2 * static_cast<int>(little_endian(data, 3, 3));
  for (std::size_t at = 16; at < data.size();) {
    const Chunk chunk = chunk_at(data, at);
    if (take_bitstream(data, chunk, frame)) return;
    at = chunk.end;
  }
  throw DataError("WebP animation whose first frame has no picture");
}

WebpFrame webp_frame(Bytes bytes) {
  const Bytes file = slice(bytes, 0, kChunkHeader + std::size_t{little_endian(bytes, 4, 4)});
  WebpFrame frame{.header = {.format = ImageFormat::Webp}};
  const Chunk first = chunk_at(file, 12);
  if (take_bitstream(file, first, frame)) {
    frame.header.stored = frame.size;
    return frame;
  }
  if (!has_text(file, first.begin, "VP8X")) throw DataError("WebP that begins with an unknown chunk");
  frame.header.stored = {size_at(first.data, 4), size_at(first.data, 7)};
  const bool has_exif = (little_endian(first.data, 0, 1) & kExifFlag) != 0;
  for (std::size_t at = first.end; at < file.size();) {
    const Chunk chunk = chunk_at(file, at);
    if (frame.bitstream.empty() && !take_bitstream(file, chunk, frame) && has_text(file, at, "ANMF"))
      take_first_frame(chunk.data, frame);
    if (has_exif && has_text(file, at, "EXIF")) frame.header.orientation = exif_orientation(chunk.data);
    at = chunk.end;
  }
  if (frame.bitstream.empty()) throw DataError("WebP without a picture");
  const PixelSize canvas = frame.header.stored;
  if (frame.left + frame.size.width > canvas.width || frame.top + frame.size.height > canvas.height)
    throw DataError(fmt::format("WebP picture of {} x {} at ({}, {}), outside of the canvas of {} x {}",
                                frame.size.width, frame.size.height, frame.left, frame.top, canvas.width,
                                canvas.height));
  return frame;
}

// An image format that Braid does not read; empty: unknown.
std::string_view unread_format(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), std::min<std::size_t>(bytes.size(), 16));
  if (text.starts_with("GIF8")) return "a GIF";
  if (text.starts_with("BM")) return "a BMP";
  if (text.starts_with(std::string_view("II*\0", 4)) || text.starts_with(std::string_view("MM\0*", 4))) return "a TIFF";
  if (text.size() < 12 || text.substr(4, 4) != "ftyp") return "";
  const std::string_view brand = text.substr(8, 4);
  return brand.starts_with("avi") ? "an AVIF" : brand.starts_with("hei") || brand == "mif1" ? "a HEIF" : "";
}

ImageHeader header_of(Bytes bytes) {
  if (has_text(bytes, 0, "\xff\xd8\xff")) return jpeg_header(bytes);
  if (has_text(bytes, 0, "\x89PNG\r\n\x1a\n")) return png_header(bytes);
  if (has_text(bytes, 0, "RIFF") && has_text(bytes, 8, "WEBP")) return webp_frame(bytes).header;
  if (bytes.empty()) throw DataError("the file is empty");
  const std::string_view other = unread_format(bytes);
  throw DataError(fmt::format("this is not a JPEG, PNG or WebP file{}{}", other.empty() ? "" : ", but ", other));
}

void check_size(PixelSize size, std::int64_t most_pixels) {
  if (size.width < 1 || size.height < 1) throw DataError(fmt::format("invalid size {} x {}", size.width, size.height));
  if (size.pixels() > most_pixels)
    throw DataError(fmt::format("{} x {} pixels are more than the limit of {} pixels; scale the picture down",
                                size.width, size.height, most_pixels));
}

// libjpeg and libpng report errors by longjmp, which runs no destructors: between setjmp and the last call of the
// library there are no objects that have one.
class LibraryCall {
 public:
  // Calls functions of the library.
  template <class Body>
  void call(const Body& body) {
    if (setjmp(place_) == 0) return body();
    if (is_out_of_memory_) throw std::bad_alloc();  // says nothing about the image
    throw DataError(message_);
  }
  [[noreturn]] void fail(const char* what, const char* message, bool is_out_of_memory = false) {
    std::snprintf(message_, sizeof message_, "%s%s", what, message);
    is_out_of_memory_ = is_out_of_memory;
    std::longjmp(place_, 1);
  }

 private:
  std::jmp_buf place_{};
  char message_[256] = {};
  bool is_out_of_memory_ = false;
};

#ifdef BRAID_HAS_JPEG
// Real progressive images have tens of scans. Each scan visits the whole image, so a small file of very many scans
// could keep a decoder busy for hours.
constexpr int kMostScans = 500;

class JpegReader : public LibraryCall {
 public:
  explicit JpegReader(Bytes bytes) {
    jpeg.err = jpeg_std_error(&errors_);
    jpeg.client_data = this;
    errors_.error_exit = [](j_common_ptr failed) {
      char message[JMSG_LENGTH_MAX];
      (*failed->err->format_message)(failed, message);
      reader(failed).fail("damaged JPEG: ", message, failed->err->msg_code == JERR_OUT_OF_MEMORY);
    };
    errors_.emit_message = [](j_common_ptr, int) {};  // warnings; the default prints them
    progress_.progress_monitor = [](j_common_ptr monitored) {
      if (reinterpret_cast<j_decompress_ptr>(monitored)->input_scan_number > kMostScans)
        reader(monitored).fail("damaged JPEG: ", "more than 500 scans");
    };
    call([&] {
      jpeg_create_decompress(&jpeg);
      jpeg_mem_src(&jpeg, bytes.data(), bytes.size());
      jpeg.src->fill_input_buffer = [](j_decompress_ptr ended) -> boolean {
        reader(reinterpret_cast<j_common_ptr>(ended)).fail("", "the JPEG file ends early");
      };
      jpeg.progress = &progress_;
    });
  }
  JpegReader(const JpegReader&) = delete;
  ~JpegReader() { jpeg_destroy_decompress(&jpeg); }

  jpeg_decompress_struct jpeg{};

 private:
  static JpegReader& reader(j_common_ptr jpeg) { return *static_cast<JpegReader*>(jpeg->client_data); }

  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
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

Image decode_jpeg(Bytes bytes, PixelSize stored, std::optional<PixelSize> scale_for) {
  JpegReader reader(bytes);
  jpeg_decompress_struct& jpeg = reader.jpeg;
  reader.call([&] { jpeg_read_header(&jpeg, TRUE); });
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
  reader.call([&] { jpeg_start_decompress(&jpeg); });
  Image image({static_cast<int>(jpeg.output_width), static_cast<int>(jpeg.output_height)});
  std::vector<std::uint8_t> inks(is_cmyk ? std::size_t{4} * jpeg.output_width : 0);
  reader.call([&] {
    while (jpeg.output_scanline < jpeg.output_height) {
      std::uint8_t* rgb = image.row(static_cast<int>(jpeg.output_scanline));
      JSAMPROW row = is_cmyk ? inks.data() : rgb;
      jpeg_read_scanlines(&jpeg, &row, 1);
      if (is_cmyk) cmyk_to_rgb(inks.data(), image.size().width, rgb);
    }
  });
  return image;
}
#else
Image decode_jpeg(Bytes, PixelSize, std::optional<PixelSize>) {
  throw_missing_library(ImageFormat::Jpeg, "libjpeg-turbo");
}
#endif

#ifdef BRAID_HAS_PNG
class PngReader : public LibraryCall {
 public:
  explicit PngReader(Bytes bytes) : rest_(bytes) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, [](png_structp, png_const_charp) {});
    info = png != nullptr ? png_create_info_struct(png) : nullptr;
    if (info == nullptr) {
      png_destroy_read_struct(&png, nullptr, nullptr);
      throw std::runtime_error("libpng could not start: out of memory, or another version than its headers");
    }
    png_set_read_fn(png, this, read);
  }
  PngReader(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }

  png_structp png = nullptr;
  png_infop info = nullptr;

 private:
  [[noreturn]] static void fail(png_structp png, png_const_charp text) {
    const std::string_view message = text;
    // These are the words of libpng and zlib.
    const bool is_out_of_memory = message.ends_with("ut of memory") || message == "insufficient memory";
    static_cast<PngReader*>(png_get_error_ptr(png))->LibraryCall::fail("damaged PNG: ", text, is_out_of_memory);
  }
  static void read(png_structp png, png_bytep into, std::size_t count) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self->rest_.size()) fail(png, "the file ends early");
    std::memcpy(into, self->rest_.data(), count);
    self->rest_ = self->rest_.subspan(count);
  }

  Bytes rest_;
};

// An interlaced image takes seven passes, each of which completes the rows of those before.
void read_rows(PngReader& reader, std::uint8_t* first, std::size_t row_bytes, int height) {
  reader.call([&] {
    const int passes = png_set_interlace_handling(reader.png);
    png_read_update_info(reader.png, reader.info);
    if (png_get_rowbytes(reader.png, reader.info) != row_bytes) png_error(reader.png, "rows of unexpected length");
    for (int pass = 0; pass < passes; ++pass)
      for (int y = 0; y < height; ++y) png_read_row(reader.png, first + row_bytes * y, nullptr);
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

Image decode_png(Bytes bytes, PixelSize stored) {
  PngReader reader(bytes);
  reader.call([&] {
    // Texts, profiles and the like may be compressed bombs; none changes the pixels.
    png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(reader.png, reader.info);
  });
  const png_byte colour = png_get_color_type(reader.png, reader.info);
  const png_byte bits = png_get_bit_depth(reader.png, reader.info);
  if (colour == PNG_COLOR_TYPE_GRAY && bits == 16) return read_deep_grey(reader, stored);
  reader.call([&] {
    if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(reader.png);
    if (colour == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(reader.png);
    if (bits == 16) png_set_strip_16(reader.png);
    if ((colour & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(reader.png);
    png_set_strip_alpha(reader.png);
  });
  Image image(stored);
  read_rows(reader, image.pixels().data(), image.row_bytes(), stored.height);
  return image;
}
#else
Image decode_png(Bytes, PixelSize) { throw_missing_library(ImageFormat::Png, "libpng"); }
#endif

#ifdef BRAID_HAS_WEBP
// Only the VP8 or VP8L data is passed to libwebp: alpha, which is a chunk of its own, is not wanted.
Image decode_webp(Bytes bytes) {
  const WebpFrame frame = webp_frame(bytes);
  Image image(frame.header.stored);
  // A frame of an animation may be smaller than the canvas, which is black where nothing is drawn.
  if (frame.size != frame.header.stored) std::memset(image.pixels().data(), 0, image.byte_count());

  WebPDecoderConfig config;
  BRAID_CHECK(WebPInitDecoderConfig(&config), "libwebp has another version than its headers");
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  const std::size_t begin = image.row_bytes() * frame.top + std::size_t{3} * frame.left;
  config.output.u.RGBA = {.rgba = image.pixels().data() + begin,
                          .stride = static_cast<int>(image.row_bytes()),
                          .size = image.byte_count() - begin};
  const VP8StatusCode status = WebPDecode(frame.bitstream.data(), frame.bitstream.size(), &config);
  if (status == VP8_STATUS_NOT_ENOUGH_DATA || status == VP8_STATUS_SUSPENDED)
    throw DataError("the WebP data ends early");
  if (status == VP8_STATUS_OUT_OF_MEMORY) throw std::bad_alloc();
  if (status != VP8_STATUS_OK)
    throw DataError(fmt::format("damaged WebP: status {} of libwebp", static_cast<int>(status)));
  if (PixelSize{config.output.width, config.output.height} != frame.size)
    throw DataError("damaged WebP: two different sizes");
  return image;
}
#else
Image decode_webp(Bytes) { throw_missing_library(ImageFormat::Webp, "libwebp"); }
#endif

template <class Body>
auto with_name(std::string_view name, const Body& body) try {
  return body();
} catch (const DataError& e) {
  throw DataError(fmt::format("{}: {}", name, e.what()));
}

}  // namespace

void throw_missing_library(ImageFormat format, const char* library) {
  throw ConfigError(
      {fmt::format("this build of braid cannot decode {}: it was compiled without {}", name_of(format), library), "",
       fmt::format("install the headers of {} and build again", library)});
}

ImageHeader read_header(Bytes bytes, std::string_view name, std::int64_t most_pixels) {
  return with_name(name, [&] {
    const ImageHeader header = header_of(bytes);
    check_size(header.stored, most_pixels);
    return header;
  });
}

Image decode(Bytes bytes, std::string_view name, const DecodeOptions& options) {
  const ImageHeader header = read_header(bytes, name, options.most_pixels);
  Image image = with_name(name, [&] {
    if (header.format == ImageFormat::Png) return decode_png(bytes, header.stored);
    if (header.format == ImageFormat::Webp) return decode_webp(bytes);
    std::optional<PixelSize> target = options.scale_for;
    if (target && options.orient && header.orientation >= 5) target = PixelSize{target->height, target->width};
    return decode_jpeg(bytes, header.stored, target);
  });
  return options.orient ? oriented(std::move(image), header.orientation) : std::move(image);
}

std::string encode_png([[maybe_unused]] const Image& image) {
#ifdef BRAID_HAS_PNG
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
#else
  throw_missing_library(ImageFormat::Png, "libpng");
#endif
}

}  // namespace braid
