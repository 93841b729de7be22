// The journal of a sweep: every finished cell is on the disk before the next one begins.
#pragma once

#include <string>
#include <vector>

#include "lab/record_file.h"
#include "lab/results.h"

namespace qattn::lab {

/// A record file that holds, run after run, what the run was to measure (schema, configuration hash, inputs, calls,
/// recipes, provenance), then each cell that it finished.
class ResultsJournal {
 public:
  /// Opens `path` or makes it, checks that what it holds belongs to `plan` (its cells and sources are empty), moves the
  /// finished cells into `plan`, and begins a run of provenance `source`. `restart` throws away what is there.
  /// Throws Error(usage) when the journal belongs to another configuration or another build, Error(input) when an
  /// input has changed, the journal cannot be read or written, or another process holds it.
  ResultsJournal(const std::string& path, Results& plan, const std::string& configuration, const Json& source,
                 bool restart);

  /// What was dropped on opening, one line; empty when nothing was.
  const std::string& note() const { return note_; }
  std::size_t source() const { return source_; }  ///< this run's index in the plan's sources

  /// May be called from several threads.
  void append(const CellId& id, const Cell& cell);
  void remove() { file_.remove(); }

 private:
  RecordFile file_;
  std::string note_;
  std::size_t source_ = 0;
};

/// The cells that the journal at `path` holds for `plan`, for a look from outside, also while a sweep writes it:
/// nothing is locked or changed. 0 without a journal, or with one of another configuration.
std::size_t finished_cells(const std::string& path, const Results& plan, const std::string& configuration);

}  // namespace qattn::lab
