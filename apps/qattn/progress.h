// The line on the terminal that says how far a run is, and Ctrl-C.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace qattn::cli {

/// "done/total, time, ETA" rewritten in place on stderr, at most ten times a second; silent unless stderr is a
/// terminal.
class Progress {
 public:
  Progress(std::string what, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::int64_t done, std::int64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  bool enabled_;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = {};
};

/// "3.2 s", "4 min 10 s", "2 h 5 min".
std::string duration_text(double seconds);

/// While alive, Ctrl-C and SIGTERM set a flag instead of ending the program; a second one ends it at once.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool requested();
  /// The signal that came: SIGINT or SIGTERM.
  static int received();
};

}  // namespace qattn::cli
