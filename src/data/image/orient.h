#pragma once

#include "data/image/image.h"

namespace braid {

// The picture as it is meant to be seen; `orientation`: of EXIF, 1 to 8.
Image oriented(Image stored, int orientation);

}  // namespace braid
