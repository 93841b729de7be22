// Millions of comparisons, one assertion: counts what differs and keeps the first few for the message.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>

#include "format/encode.h"

namespace qattn::format {

class Mismatches {
 public:
  /// Compares the codes of x; returns whether they agree.
  template <class T>
  bool compare(const Format& format, T x, const Policy& policy, std::uint64_t got, std::uint64_t expected) {
    ++compared_;
    if (got == expected) return true;
    if (++count_ <= 5) {
      text_ << format.name << " rounding " << static_cast<int>(policy.rounding) << " overflow "
            << static_cast<int>(policy.overflow) << " subnormals " << static_cast<int>(policy.subnormals) << " x "
            << std::hexfloat << x << std::hex << ": got 0x" << got << ", expected 0x" << expected << std::dec << "\n";
    }
    return false;
  }

  std::int64_t compared() const { return compared_; }
  std::int64_t count() const { return count_; }
  std::string text() const { return text_.str(); }

 private:
  std::int64_t compared_ = 0;
  std::int64_t count_ = 0;
  std::ostringstream text_;
};

}  // namespace qattn::format
