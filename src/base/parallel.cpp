#include "base/parallel.h"

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <exception>
#include <limits>
#include <mutex>

#include "base/fp_environment.h"

namespace qattn {

namespace {

thread_local bool inside_task = false;

/// The outermost loop around is of one thread, and so are all within.
thread_local bool one_thread = false;

class OneThreadScope {
 public:
  OneThreadScope() : before_(one_thread) { one_thread = true; }
  ~OneThreadScope() { one_thread = before_; }
  OneThreadScope(const OneThreadScope&) = delete;
  OneThreadScope& operator=(const OneThreadScope&) = delete;

 private:
  bool before_;
};

/// Marks the thread as one that runs a piece, and keeps the default floating-point environment.
class TaskScope {
 public:
  TaskScope() : before_(inside_task) { inside_task = true; }
  ~TaskScope() { inside_task = before_; }
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

 private:
  bool before_;
  FpEnvironment environment_;
};

/// Runs pieces, each behind a guard, and keeps the error of the lowest index.
class Pieces {
 public:
  explicit Pieces(const std::function<void(std::int64_t)>& body) : body_(body) {}

  void operator()(std::int64_t i) {
    const TaskScope scope;
    try {
      body_(i);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (i < first_failure_) {
        first_failure_ = i;
        error_ = std::current_exception();
      }
    }
  }

  /// On the threads of the arena that the caller is in.
  void run_here(std::int64_t count) {
    tbb::parallel_for(
        std::int64_t{0}, count, [this](std::int64_t i) { (*this)(i); }, tbb::simple_partitioner());
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const std::function<void(std::int64_t)>& body_;
  std::mutex mutex_;
  std::int64_t first_failure_ = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr error_;
};

}  // namespace

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body) {
  Pieces pieces(body);
  if (one_thread || (threads == 1 && !inside_task)) {
    const OneThreadScope scope;
    for (std::int64_t i = 0; i < count; ++i) pieces(i);
  } else if (inside_task) {
    // Isolated: while it waits, the thread must not begin another piece of the outer loop, whose memory would add up.
    tbb::this_task_arena::isolate([&] { pieces.run_here(count); });
  } else {
    // An arena alone gets no more workers than there are cores; the control lifts that for a caller who asks for more.
    const int concurrency = threads > 0 ? threads : tbb::this_task_arena::max_concurrency();
    const tbb::global_control control(tbb::global_control::max_allowed_parallelism,
                                      static_cast<std::size_t>(concurrency));
    tbb::task_arena arena(concurrency);
    arena.execute([&] { pieces.run_here(count); });
  }
  pieces.rethrow();
}

}  // namespace qattn
