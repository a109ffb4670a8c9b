// The "pre_tokenizer" of a tokenizer.json.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/tokenizer_steps.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

// Divides a piece at the matches of a pattern, which match() takes in order.
class PieceSplitter {
 public:
  PieceSplitter(const Piece& piece, SplitBehavior behavior, bool inverted, std::vector<Piece>& out)
      : piece_(piece),
        behavior_(behavior),
        inverted_(inverted),
        out_(out),
        done_(piece.begin),
        first_in_out_(out.size()) {}

  void match(TextRange range) {  // relative to the piece's begin
    if (piece_.begin + range.begin > done_) add(done_, piece_.begin + range.begin, inverted_);
    add(piece_.begin + range.begin, piece_.begin + range.end, !inverted_);
    done_ = piece_.begin + range.end;
  }

  void finish() {
    if (done_ < piece_.end) add(done_, piece_.end, inverted_);
    const auto own = out_.begin() + static_cast<std::ptrdiff_t>(first_in_out_);
    out_.erase(std::remove_if(own, out_.end(), [](const Piece& part) { return part.begin >= part.end; }), out_.end());
  }

 private:
  void add(std::size_t begin, std::size_t end, bool matches) {
    if (matches && behavior_ == SplitBehavior::Removed) return;
    const bool extends = (behavior_ == SplitBehavior::MergedWithPrevious && matches && !last_matched_) ||
                         (behavior_ == SplitBehavior::MergedWithNext && !matches && last_matched_) ||
                         (behavior_ == SplitBehavior::Contiguous && matches == last_matched_);
    last_matched_ = matches;
    if (extends && out_.size() > first_in_out_)
      out_.back().end = end;
    else
      out_.push_back({begin, end, piece_.is_first && begin == piece_.begin});
  }

  const Piece piece_;
  const SplitBehavior behavior_;
  const bool inverted_;
  std::vector<Piece>& out_;
  std::size_t done_;                // end of the last part
  const std::size_t first_in_out_;  // where this piece's parts begin in out_
  bool last_matched_ = false;
};

void split(Pieces& pieces, const Regex& pattern, SplitBehavior behavior, bool inverted) {
  std::vector<Piece> parts;
  parts.reserve(pieces.text.size() / 4 + 1);
  RegexScan scan(pattern);
  for (const Piece& piece : pieces.list) {
    PieceSplitter splitter(piece, behavior, inverted, parts);
    scan.start(pieces.view(piece));
    while (const auto match = scan.next()) splitter.match(*match);
    splitter.finish();
  }
  pieces.list.swap(parts);
}

// Writes every piece anew: append(text, piece, is_first).
template <class Append>
void rewrite(Pieces& pieces, const Append& append) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 2 + 16);
  for (Piece& piece : pieces.list) {
    const std::size_t begin = text.size();
    append(text, pieces.view(piece), piece.is_first);
    piece.begin = begin;
    piece.end = text.size();
  }
  pieces.text.swap(text);
}

void add_prefix_space(std::string& out, std::string_view piece, bool) {
  if (!piece.starts_with(' ')) out += ' ';
  out += piece;
}

void append_metaspace(std::string& out, std::string_view piece, bool is_wanted, const std::string& replacement) {
  if (is_wanted && !piece.starts_with(' ') && !piece.starts_with(replacement)) out += replacement;
  for (const char c : piece)
    if (c == ' ')
      out += replacement;
    else
      out += c;
}

SplitBehavior read_behavior(const JsonPlace& place) {
  static const std::vector<std::string> names = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                 "Contiguous"};
  if (place.is_null()) return SplitBehavior::Isolated;
  const auto found = std::find(names.begin(), names.end(), place.string());
  if (found == names.end()) place.expected(joined_by_or(names));
  return static_cast<SplitBehavior>(found - names.begin());
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonPlace& place) {
  if (place.is_null()) return;
  for_each_step(place, "pretokenizers", [&](const JsonPlace& step) { add(step); });
}

void PreTokenizer::add(const JsonPlace& place) {
  const auto split_at = [&](const Regex& pattern, SplitBehavior behavior, bool inverted = false) {
    steps_.push_back([=](Pieces& pieces) { split(pieces, pattern, behavior, inverted); });
  };
  const std::string type = place.type();
  if (type == "Split") {
    split_at(read_pattern(place["pattern"]), read_behavior(place["behavior"]), place["invert"].boolean_or(false));
  } else if (type == "ByteLevel") {
    if (place["add_prefix_space"].boolean_or(true))
      steps_.push_back([](Pieces& pieces) { rewrite(pieces, add_prefix_space); });
    if (place["use_regex"].boolean_or(true)) split_at(Regex(kGpt2Pattern), SplitBehavior::Isolated);
    steps_.push_back([](Pieces& pieces) {
      rewrite(pieces, [](std::string& out, std::string_view piece, bool) { append_byte_level(out, piece); });
    });
  } else if (type == "Digits") {
    split_at(Regex(R"(\p{@number})"),
             place["individual_digits"].boolean_or(false) ? SplitBehavior::Isolated : SplitBehavior::Contiguous);
  } else if (type == "Whitespace") {
    split_at(Regex(R"([\p{@rustword}]+|[^\p{@rustword}\s]+)"), SplitBehavior::Removed, /*inverted=*/true);
  } else if (type == "WhitespaceSplit") {
    split_at(Regex(R"(\s)"), SplitBehavior::Removed);
  } else if (type == "Punctuation") {
    split_at(Regex(R"(\p{@punctuation})"), read_behavior(place["behavior"]));
  } else if (type == "Metaspace") {
    const std::string replacement = read_replacement(place), scheme = read_prepend_scheme(place);
    steps_.push_back([=](Pieces& pieces) {
      rewrite(pieces, [&](std::string& out, std::string_view piece, bool is_first) {
        append_metaspace(out, piece, scheme == "always" || (scheme == "first" && is_first), replacement);
      });
    });
    if (place["split"].boolean_or(true)) split_at(Regex::literal(replacement), SplitBehavior::MergedWithNext);
  } else {
    place.refuse(
        fmt::format("has type {}; known pre-tokenizers: Sequence, Split, ByteLevel, Digits, Whitespace, "
                    "WhitespaceSplit, Punctuation, Metaspace",
                    in_quotes(type)));
  }
}

void PreTokenizer::apply(Pieces& pieces) const {
  for (const auto& step : steps_) step(pieces);
}

}  // namespace braid
