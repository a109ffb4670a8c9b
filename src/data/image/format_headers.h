// The headers of the single formats, for header.cpp and for the decoders. Each throws a DataError without a file's
// name.
#pragma once

#include "data/image/bytes.h"
#include "data/image/format.h"

namespace braid {

bool is_jpeg(Bytes bytes);
bool is_png(Bytes bytes);
bool is_webp(Bytes bytes);

ImageHeader jpeg_header(Bytes bytes);
ImageHeader png_header(Bytes bytes);

// A WebP file holds one picture, or an animation of which only the first frame is of interest.
struct WebpFrame {
  ImageHeader header{};
  Bytes bitstream{};  // the VP8 or VP8L data; alpha is stored elsewhere
  PixelSize size{};   // of the bitstream
  int left = 0, top = 0;
};
WebpFrame webp_frame(Bytes bytes);

// From a TIFF structure, with or without the text "Exif" before it; 1 if it is damaged or has no valid orientation.
int exif_orientation(Bytes exif);

}  // namespace braid
