#include "base/fp_environment.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#error "FpEnvironment: this architecture's control register is not known"
#endif

namespace qattn {
namespace {

#if defined(__x86_64__)
// MXCSR: rounding control 00 (nearest), FTZ and DAZ clear, all exceptions masked.
constexpr std::uint64_t kDefault = 0x1F80;
std::uint64_t read_control() { return _mm_getcsr(); }
void write_control(std::uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#else
// FPCR: rounding 00 (nearest), FZ and FZ16 clear, traps off.
constexpr std::uint64_t kDefault = 0;
std::uint64_t read_control() {
  std::uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void write_control(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#endif

}  // namespace

FpEnvironment::FpEnvironment() : saved_(read_control()) {
  if (saved_ != kDefault) write_control(kDefault);
}

FpEnvironment::~FpEnvironment() {
  if (read_control() != saved_) write_control(saved_);
}

}  // namespace qattn
