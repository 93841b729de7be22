#include "scalar/blocks.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <mutex>

namespace qattn::scalar {

void for_each_block(int threads, const std::function<void(int)>& work, const std::function<void(int)>& progress) {
  std::mutex mutex;
  int done = 0;
  const auto run = [&](const tbb::blocked_range<int>& blocks) {
    for (int block = blocks.begin(); block != blocks.end(); ++block) {
      work(block);
      const std::lock_guard lock(mutex);
      ++done;
      if (progress) progress(done);
    }
  };
  tbb::task_arena arena(threads > 0 ? threads : tbb::task_arena::automatic);
  arena.execute([&] { tbb::parallel_for(tbb::blocked_range<int>(0, 256, 1), run); });
}

}  // namespace qattn::scalar
