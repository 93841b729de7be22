// Files of what kernels of ours returned.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "attention/reference.h"
#include "io/attributes.h"
#include "io/dump.h"
#include "lab/dump_set.h"

namespace qattn::gpu {

/// Writes calls of dumps again, under HND, with o and lse (FP32, natural logarithm): a dump, or kernel vectors, which
/// have several kernels' outputs for a call. The file appears when commit() returns.
class OutputDump {
 public:
  /// `attributes` go to the root.
  OutputDump(const std::string& path, const lab::DumpSet& dumps, std::string_view schema,
             const io::Attributes& attributes);

  /// Throws Error(usage) unless the selected heads are whole groups that share a key/value head, and all heads of a
  /// call that has more than q, k, v.
  static void check(const lab::SelectedCall& call);

  /// Copies q, k, v, mask, packed sequences and descales of a call to group `name`; the call passes check().
  void copy_inputs(const lab::SelectedCall& call, const std::string& name);

  /// Makes room in `group` for o, of `format`, and lse of the call's selected heads.
  void begin_outputs(const lab::SelectedCall& call, const std::string& group, const format::Format& format,
                     const io::Attributes& attributes);

  /// The output of query head `head`, as the call numbers it.
  void write_head(const lab::SelectedCall& call, const std::string& group, const format::Format& format,
                  std::int64_t batch, std::int64_t head, const attention::Output& output);

  void commit() { writer_.commit(); }

 private:
  void copy_heads(const lab::SelectedCall& call, const std::string& name, const std::string& dataset,
                  std::int64_t first, std::int64_t last);
  void copy_extras(const lab::SelectedCall& call, const std::string& name);

  const lab::DumpSet& dumps_;
  io::DumpWriter writer_;
};

}  // namespace qattn::gpu
