#include "data/draw/font.h"

#include <filesystem>

namespace braid {

std::string find_font() {
  for (const char* path :
       {"/usr/share/fonts/truetype/dejavu/DejaVuSans-Bold.ttf", "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
        "/usr/share/fonts/truetype/liberation/LiberationSans-Bold.ttf"})
    if (std::filesystem::exists(path)) return path;
  return "";
}

}  // namespace braid
