// An image in memory: 8-bit RGB, rows from top to bottom, without gaps between rows; its orientation and its size; and
// its patches.
#pragma once

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

// --- Images as rows of patches, the input of vision encoders, and into how many patches or tiles an image is resized:
// with dynamic resolution, each image keeps about its size and aspect within a budget of patches; with fixed tiling, it
// is resized to a grid of square tiles of about its aspect, and cut.

// Patches or tiles of an image.
struct CellGrid {
  int columns = 0, rows = 0;
  std::int64_t cells() const { return std::int64_t{columns} * rows; }
  PixelSize pixels(int cell_side) const { return {columns * cell_side, rows * cell_side}; }
  bool operator==(const CellGrid&) const = default;
};

// Writes the patches row by row, each as (channel, y, x): c (py yy) (px xx) -> (py px) (c yy xx). The sides of the
// image are multiples of `patch`; `rows` has as many bytes as the image.    rows: [patches, 3 * patch * patch]
void cut_patches(const Image& image, int patch, std::span<std::uint8_t> rows);

// How many embeddings the language model receives for one image or tile. A pixel shuffle joins 2 x 2 patches.
inline std::int64_t embedding_count(const CellGrid& patches, bool pixel_shuffle) {
  return pixel_shuffle ? patches.cells() / 4 : patches.cells();
}

struct DynamicResolutionConfig {
  int patch = 16;                // pixels per side
  std::int64_t min_patches = 0;  // smaller images are enlarged to about as many
  std::int64_t max_patches = 0;  // per image; 0: no limit but the budget
  int min_side = 0;              // pixels; 0: none
  int max_side = 0;              // pixels; 0: none. It takes precedence over min_side and min_patches
  int divisor = 1;               // sides in patches are multiples of it: 2 if 2 x 2 patches are joined
};

// The patches of one image. Never more than `budget`, unless that is below divisor^2, the smallest grid.
CellGrid fit_patches(PixelSize image, std::int64_t budget, const DynamicResolutionConfig& config);

// The patches of all images of a sample that has room for `embeddings`. They fit, unless min_patches of each image
// (or the smallest grids) already take more.
std::vector<CellGrid> fit_images(const std::vector<PixelSize>& images, std::int64_t embeddings,
                                 const DynamicResolutionConfig& config);

struct TilingConfig {
  int tile = 512;  // pixels per side
  int max_tiles = 1;
  bool thumbnail = false;  // one more tile, the last, with the whole image; not if there is only one tile
};

CellGrid choose_tiles(PixelSize image, const TilingConfig& config);

// With the thumbnail.
inline std::int64_t tile_count(const CellGrid& tiles, const TilingConfig& config) {
  return tiles.cells() + (config.thumbnail && tiles.cells() != 1 ? 1 : 0);
}

// The tiles of all images of a sample that has room for `embeddings`; each tile takes `embeddings_per_tile`. While
// they do not fit, max_tiles is lowered (to 8, 6, 4, 2, 1) for all images; with 1 the result is returned in any case.
std::vector<CellGrid> fit_tiles(const std::vector<PixelSize>& images, std::int64_t embeddings,
                                std::int64_t embeddings_per_tile, TilingConfig config);

// Tile (column, row) of an image that was resized to whole tiles.
Image cut_tile(const Image& resized, int tile, int column, int row);

}  // namespace braid
