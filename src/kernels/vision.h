// Rearrangements of the patches of images of any sizes, all images in one launch; see ops/vision.h.
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

struct ImageOnDevice {
  std::int64_t first_patch, rows, columns;
};
struct Images {
  const ImageOnDevice* data = nullptr;  // on the device
  std::int64_t count = 0, patches = 0;
};

// One token for each 2 x 2 square of patches, or back.   patches: [P, H], tokens: [P / 4, 4 H], dense
template <class T>
void join_squares(Matrix<const T> patches, const Images& images, T* tokens, cudaStream_t stream);
template <class T>
void split_squares(Matrix<const T> tokens, const Images& images, T* patches, cudaStream_t stream);

// For each image its class tokens, then its patches plus their positions in a square table that is resized bilinearly.
template <class T>
struct PlacePatches {
  Matrix<const T> patches;      // [P, H]
  Matrix<const T> table;        // [side * side, H]
  Matrix<const T> class_token;  // [C, H]
  std::int64_t side = 0;
  T* tokens = nullptr;  // [P + C * images, H], dense
};
template <class T>
void place_patches(const PlacePatches<T>& place, const Images& images, cudaStream_t stream);

template <class T>
struct PlacePatchesBackward {
  Matrix<const T> grad;  // [P + C * images, H]
  std::int64_t side = 0, class_tokens = 0;
  T* patches_grad = nullptr;  // each dense, and null if not wanted
  T* table_grad = nullptr;
  T* class_token_grad = nullptr;
};
template <class T>
void place_patches_backward(const PlacePatchesBackward<T>& place, const Images& images, cudaStream_t stream);

}  // namespace braid::kernels
