#include "data/text/pieces.h"

namespace braid {

void PieceSplitter::start(const Piece& piece) {
  piece_ = piece;
  done_ = piece.begin;
  first_in_out_ = out_.size();
  last_matched_ = false;
}

void PieceSplitter::match(std::size_t begin, std::size_t end) {
  if (piece_.begin + begin > done_) add(done_, piece_.begin + begin, inverted_);
  add(piece_.begin + begin, piece_.begin + end, !inverted_);
  done_ = piece_.begin + end;
}

void PieceSplitter::finish() {
  if (done_ < piece_.end) add(done_, piece_.end, inverted_);
  std::size_t kept = first_in_out_;
  for (std::size_t i = first_in_out_; i < out_.size(); ++i)
    if (out_[i].begin < out_[i].end) out_[kept++] = out_[i];
  out_.resize(kept);
}

void PieceSplitter::add(std::size_t begin, std::size_t end, bool matches) {
  const bool has_last = out_.size() > first_in_out_;
  bool extends = false;
  switch (behavior_) {
    case SplitBehavior::Removed:
      if (matches) return;
      break;
    case SplitBehavior::Isolated:
      break;
    case SplitBehavior::MergedWithPrevious:
      extends = matches && !last_matched_;
      break;
    case SplitBehavior::MergedWithNext:
      extends = !matches && last_matched_;
      break;
    case SplitBehavior::Contiguous:
      extends = matches == last_matched_;
      break;
  }
  last_matched_ = matches;
  if (extends && has_last)
    out_.back().end = end;
  else
    out_.push_back({begin, end, piece_.is_first && begin == piece_.begin});
}

}  // namespace braid
