#pragma once
#include <bitset>

namespace braid {

// Finds any of many short literals in a text. Only where six bytes may begin a literal are they compared with it.
class AnchorScan {
 public:
  static constexpr std::size_t kShortest = 6;  // bytes of an anchor

  explicit AnchorScan(std::vector<std::string> anchors) : anchors_(std::move(anchors)) {
    for (int number = 0; const std::string& anchor : anchors_) {
      const std::uint32_t slot = slot_of(anchor.data());
      may_begin_.set(slot);
      by_slot_[slot].push_back(number++);
    }
  }

  // Calls found(anchor's number) for each occurrence of each anchor, until it returns false.
  template <class Found>
  void each(std::string_view text, Found found) const {
    for (std::size_t at = 0; at + kShortest <= text.size(); ++at) {
      const std::uint32_t slot = slot_of(text.data() + at);
      if (!may_begin_[slot]) continue;
      for (const int anchor : by_slot_.at(slot))
        if (text.substr(at).starts_with(anchors_[static_cast<std::size_t>(anchor)]) && !found(anchor)) return;
    }
  }

 private:
  static std::uint32_t slot_of(const char* text) {  // a hash of six bytes
    std::uint32_t first, last;
    std::memcpy(&first, text, sizeof first);
    std::memcpy(&last, text + kShortest - sizeof last, sizeof last);
    return (first * 2654435761u + last * 2246822519u) >> 16;
  }

  std::vector<std::string> anchors_;
  std::bitset<1 << 16> may_begin_;
  std::unordered_map<std::uint32_t, std::vector<int>> by_slot_;
};

}  // namespace braid
