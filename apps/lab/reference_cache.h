// Float64 references kept on disk from run to run.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "attention/problem.h"
#include "attention/reference.h"

namespace qattn::lab {

/// A folder of references, one file each, named by the SHA-256 of all that a reference depends on: the version of its
/// definition, q, k, v, mask, scale and causality. A file is written in one step and ends with a digest of itself; one
/// that is missing, cut off or damaged is computed and written anew. A folder that cannot be written to or read is no
/// error: references are computed then, and trouble() says why. Entries are never deleted; the folder may be, at any
/// time.
class ReferenceCache {
 public:
  /// Problems of fewer multiply-adds than this cost less than reading their reference, and are not kept.
  static constexpr std::int64_t kLeastWork = std::int64_t{1} << 28;

  /// `folder` need not exist.
  explicit ReferenceCache(std::string folder, std::int64_t least_work = kLeastWork);

  /// reference_attention(problem), bit for bit. May be called from several threads.
  attention::Output reference(const attention::Problem& problem) const;

  std::int64_t hits() const { return hits_; }  ///< references that came from the disk
  /// Why the first reference that could not be kept was not, in one line; empty while all were.
  std::string trouble() const;

  /// $XDG_CACHE_HOME/qattn/references, else $HOME/.cache/qattn/references; empty when neither variable is set.
  static std::string default_folder();

 private:
  std::string folder_;
  std::int64_t least_work_;
  mutable std::atomic<std::int64_t> hits_ = 0;
  mutable std::mutex mutex_;
  mutable std::string trouble_;  ///< guarded by mutex_
};

}  // namespace qattn::lab
