// The pieces of a text on the way from the whole text to tokens.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct Piece {
  std::size_t begin = 0, end = 0;  // in Pieces::text
  bool is_first = false;           // whether it begins where the user's text begins
};

struct Pieces {
  std::string text;
  std::vector<Piece> list;  // none is empty

  std::string_view view(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
};

enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

// Divides a piece at the matches of a pattern. Feed it matches in order, then finish().
class PieceSplitter {
 public:
  PieceSplitter(SplitBehavior behavior, bool inverted, std::vector<Piece>& out)
      : behavior_(behavior), inverted_(inverted), out_(out) {}

  void start(const Piece& piece);
  void match(std::size_t begin, std::size_t end);  // relative to the piece's begin
  void finish();

 private:
  void add(std::size_t begin, std::size_t end, bool matches);

  const SplitBehavior behavior_;
  const bool inverted_;
  std::vector<Piece>& out_;
  Piece piece_;
  std::size_t done_ = 0;          // end of the last part
  std::size_t first_in_out_ = 0;  // where this piece's parts begin in out_
  bool last_matched_ = false;
};

}  // namespace braid
