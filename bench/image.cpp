// Times decoding and resizing of pictures on one core, for bench/image.py, which compares with Pillow.
//   bench_image WIDTH HEIGHT ROUNDS [FILE...]
// Prints a line of JSON per file: CPU milliseconds (the least of all rounds) and a checksum of the resized pixels.
// `limit_ms` is the time of libjpeg alone, without our checks, copies and orientation; 0 for other formats. Without
// files it resizes 1920 x 1280 pixels of noise.

// jpeglib.h needs <cstdio> before it.
// clang-format off
#include <jpeglib.h>
// clang-format on

#include "data/image/image.h"
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "data/image/decode.h"

namespace {

using namespace braid;
using FileBytes = std::vector<std::uint8_t>;

double cpu_ms() {
  std::timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

double least_ms(int rounds, const std::function<void()>& work) {
  double least = 1e30;
  for (int round = 0; round < rounds; ++round) {
    const double start = cpu_ms();
    work();
    least = std::min(least, cpu_ms() - start);
  }
  return least;
}

// Only for good files: the default error handler ends the program.
void decode_with_libjpeg(const FileBytes& bytes, std::vector<std::uint8_t>& pixels) {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, bytes.data(), bytes.size());
  jpeg_read_header(&jpeg, TRUE);
  jpeg.out_color_space = JCS_RGB;
  jpeg_start_decompress(&jpeg);
  pixels.resize(std::size_t{3} * jpeg.output_width * jpeg.output_height);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = pixels.data() + std::size_t{3} * jpeg.output_width * jpeg.output_scanline;
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  jpeg_destroy_decompress(&jpeg);
}

// bench/image.py computes the same of Pillow's pixels.
std::uint64_t checksum_of(std::span<const std::uint8_t> bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) sum += bytes[i] * std::uint64_t{i % 65521 + 1};
  return sum;
}

nlohmann::json measure(const std::string& path, PixelSize target, int rounds) {
  std::ifstream file(path, std::ios::binary);
  const FileBytes bytes{std::istreambuf_iterator<char>(file), {}};
  const ImageHeader header = read_header(bytes, path);
  const Image image = decode(bytes, path, {.orient = false});
  std::vector<std::uint8_t> pixels;
  const bool is_jpeg = header.format == ImageFormat::Jpeg;
  return {
      {"header_ms", least_ms(rounds, [&] { read_header(bytes, path); })},
      {"decode_ms", least_ms(rounds, [&] { decode(bytes, path, {.orient = false}); })},
      {"scaled_ms", least_ms(rounds, [&] { decode(bytes, path, {.orient = false, .scale_for = target}); })},
      {"limit_ms", is_jpeg ? least_ms(rounds, [&] { decode_with_libjpeg(bytes, pixels); }) : 0.0},
      {"resize_ms", least_ms(rounds, [&] { resize(image, target, ResizeFilter::Bicubic); })},
      {"checksum", checksum_of(resize(image, target, ResizeFilter::Bicubic).pixels())},
  };
}

void measure_noise(PixelSize target, int rounds) {
  Image noise({1920, 1280});
  std::uint32_t state = 1;
  for (std::uint8_t& value : noise.pixels()) {
    state = state * 1664525 + 1013904223;
    value = static_cast<std::uint8_t>(state >> 24);
  }
  const double ms = least_ms(rounds, [&] { resize(noise, target, ResizeFilter::Bicubic); });
  fmt::print("{}\n", nlohmann::json{{"resize_ms", ms}}.dump());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: bench_image WIDTH HEIGHT ROUNDS [FILE...]\n");
    return 2;
  }
  const PixelSize target = {std::atoi(argv[1]), std::atoi(argv[2])};
  if (argc == 4) measure_noise(target, std::atoi(argv[3]));
  for (int i = 4; i < argc; ++i) fmt::print("{}\n", measure(argv[i], target, std::atoi(argv[3])).dump());
}
