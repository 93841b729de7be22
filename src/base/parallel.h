// Loops over independent pieces of work.
#pragma once

#include <cstdint>
#include <functional>

namespace qattn {

/// Calls body(0) ... body(count - 1) on at most `threads` threads (0: one for each core). The pieces must not depend
/// on each other; each runs in the default floating-point environment. If pieces throw, the exception of the lowest
/// index is rethrown after all others have ended, so that an error too is the same for every number of threads.
///
/// Called from a body of another parallel_for, it shares that one's threads, whatever `threads` says: a loop over heads
/// keeps all its threads busy although there are fewer heads than threads, when each head loops over its query blocks.
/// Such an inner loop passes 1, and so runs in its caller's thread alone when nobody is around it, or a loop of one
/// thread is.
void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body);

}  // namespace qattn
