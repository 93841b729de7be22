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

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body) {
  std::mutex mutex;
  std::int64_t first_failure = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr error;
  const auto guarded = [&](std::int64_t i) {
    const FpEnvironment environment;
    try {
      body(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (i < first_failure) {
        first_failure = i;
        error = std::current_exception();
      }
    }
  };
  // An arena alone gets no more workers than there are cores; the control lifts that for a caller who asks for more.
  const int concurrency = threads > 0 ? threads : tbb::this_task_arena::max_concurrency();
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism,
                                    static_cast<std::size_t>(concurrency));
  tbb::task_arena arena(concurrency);
  arena.execute([&] { tbb::parallel_for(std::int64_t{0}, count, guarded, tbb::simple_partitioner()); });
  if (error) std::rethrow_exception(error);
}

}  // namespace qattn
