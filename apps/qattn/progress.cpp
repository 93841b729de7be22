#include "progress.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace qattn::cli {
namespace {

constexpr std::chrono::milliseconds kInterval(100);

volatile sig_atomic_t interrupt_requested = 0;

void set_handlers(void (*handler)(int)) {
  for (const int number : {SIGINT, SIGTERM}) signal(number, handler);
}

extern "C" void on_interrupt(int number) {
  interrupt_requested = number;
  set_handlers(SIG_DFL);
}

}  // namespace

Progress::Progress(std::string what, bool quiet)
    : what_(std::move(what)), enabled_(!quiet && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

void Progress::show(std::int64_t done, std::int64_t total) {
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  if (now - last_ < kInterval && done < total) return;
  last_ = now;
  shown_ = true;
  const double spent = std::chrono::duration<double>(now - start_).count();
  const double left = spent / static_cast<double>(done) * static_cast<double>(total - done);
  fmt::print(stderr, "\r\x1b[K{}/{} {}, {}, ETA {}", done, total, what_, duration_text(spent), duration_text(left));
  std::fflush(stderr);
}

std::string duration_text(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::round(seconds));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

InterruptGuard::InterruptGuard() {
  interrupt_requested = 0;
  set_handlers(on_interrupt);
}

InterruptGuard::~InterruptGuard() { set_handlers(SIG_DFL); }

bool InterruptGuard::requested() { return interrupt_requested != 0; }

int InterruptGuard::received() { return interrupt_requested == SIGTERM ? SIGTERM : SIGINT; }

}  // namespace qattn::cli
