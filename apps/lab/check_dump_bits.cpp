// Bit mode: a kernel's outputs against the replay of a published kernel.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "io/attention_shapes.h"
#include "kernels/kernel.h"
#include "lab/checked_head.h"
#include "lab/diagnosis.h"
#include "lab/dump_verdict.h"
#include "lab/row_trace.h"
#include "lab/runner.h"
#include "lab/tensor_difference.h"

namespace qattn::lab {
namespace {

/// A dataset of the whole call, [B, H, N, D].
Tensor whole(const DumpSet& dumps, const SelectedCall& selected, const std::string& dataset, std::int64_t heads) {
  Tensor all;
  for (std::int64_t b = 0; b < selected.call->batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const Tensor head = dumps.read_codes(selected, dataset, b, h);
      if (all.format == nullptr) {
        all = make_tensor(*head.format, {selected.call->batch, heads, head.shape.at(0), head.shape.at(1)});
        all.codes.clear();
      }
      all.codes.insert(all.codes.end(), head.codes.begin(), head.codes.end());
    }
  }
  return all;
}

/// The part of a replayed tensor that belongs to one head.
Tensor head_of(const Tensor& all, std::int64_t batch, std::int64_t head) {
  Tensor part{all.format, {all.shape.begin() + 2, all.shape.end()}, {}};
  std::int64_t size = 1;
  for (const std::int64_t extent : part.shape) size *= extent;
  const auto bytes = static_cast<std::ptrdiff_t>(size) * static_cast<std::ptrdiff_t>(all.element_bytes());
  const auto first = all.codes.begin() + (batch * all.shape.at(1) + head) * bytes;
  part.codes.assign(first, first + bytes);
  return part;
}

class BitCheck {
 public:
  BitCheck(const DumpSet& dumps, const DumpCheckOptions& options, CheckResult& result)
      : dumps_(dumps), options_(options), kernel_(kernels::find_kernel(options.kernel)), result_(result) {}

  void run(std::span<const Piece> pieces) {
    if (options_.explain) result_.remarks.push_back("--explain changes recipes, and says nothing with --kernel");
    std::int64_t done = 0;
    for (std::size_t i = 0; i < pieces.size();) {
      if (options_.cancelled && options_.cancelled()) throw Interrupted();
      std::size_t end = i;
      while (end < pieces.size() && pieces[end].call == pieces[i].call) ++end;
      // A call that the kernel does not take does not keep the others from being compared.
      const SelectedCall& selected = dumps_.calls()[pieces[i].call];
      try {
        check_call(pieces.subspan(i, end - i));
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::internal) throw;
        result_.errors.push_back({dumps_.files()[selected.file], selected.call->path, error.what(), error.kind()});
      }
      done += static_cast<std::int64_t>(end - i);
      if (options_.progress) options_.progress(done, static_cast<std::int64_t>(pieces.size()));
      i = end;
    }
  }

 private:
  kernels::Call call_of(const SelectedCall& selected) const {
    const io::AttentionCall& from = *selected.call;
    const std::string where = fmt::format("{}: {}", dumps_.files()[selected.file], from.path);
    if (from.has("mask") || !from.segments.empty()) {
      throw Error(ErrorKind::usage, fmt::format("{}: has {}, which no replayed kernel takes; check it with --recipe",
                                                where, from.has("mask") ? "a mask" : "packed sequences"));
    }
    kernels::Call call;
    call.q = whole(dumps_, selected, "q", from.q_heads);
    call.k = whole(dumps_, selected, "k", from.kv_heads);
    call.v = whole(dumps_, selected, "v", from.kv_heads);
    call.layout = from.layout;
    call.is_causal = from.is_causal;
    call.sm_scale = from.sm_scale;
    call.threads = options_.threads;
    call.arguments = io::override_attributes(from.attributes, options_.arguments);
    if (io::find_text(call.arguments, "causal_align", where)) {
      io::AttentionCall aligned;
      io::set_layout(aligned, call.arguments, where);
      call.causal_align = aligned.causal_align == io::CausalAlign::top_left ? attention::CausalAlign::top_left
                                                                            : attention::CausalAlign::bottom_right;
    }
    if (const auto arch = io::find_text(call.arguments, "arch", where)) call.arch = *arch;
    if (options_.arch) call.arch = *options_.arch;
    if (const auto count = io::find_integer(call.arguments, "sm_count", where))
      call.sm_count = static_cast<int>(*count);
    for (const auto& [name, values] : {std::pair("q_descale", &call.q_descale), std::pair("k_descale", &call.k_descale),
                                       std::pair("v_descale", &call.v_descale)}) {
      if (!from.has(name)) continue;
      for (std::int64_t b = 0; b < from.batch; ++b) {
        for (std::int64_t h = 0; h < from.kv_heads; ++h) {
          values->push_back(static_cast<float>(dumps_.descale(selected, name, b, h)));
        }
      }
    }
    return call;
  }

  void check_call(std::span<const Piece> pieces) {
    const SelectedCall& selected = dumps_.calls()[pieces.front().call];
    const kernels::Call call = call_of(selected);
    const kernels::Returned returned = kernel_.run(call);
    const std::string evidence = fmt::format("{}: {}", kernel_.name, returned.evidence);
    if (std::find(result_.remarks.begin(), result_.remarks.end(), evidence) == result_.remarks.end()) {
      result_.remarks.push_back(evidence);
    }
    reversible_ =
        options_.ulp && std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
          const Tensor o = head_of(returned.tensors.at("o"), piece.batch, piece.head);
          return rows_in_reverse_pass(decode_matrix(o, 0, o.shape.at(0), o.shape.at(1)), *options_.ulp, *o.format);
        });
    for (const Piece& piece : pieces) {
      for (const std::string output : {"o", "lse"}) {
        if (selected.call->has(output)) check_output(piece, output, call, returned);
      }
    }
  }

  void check_output(const Piece& piece, const std::string& output, const kernels::Call& call,
                    const kernels::Returned& returned) {
    const auto found = returned.tensors.find(output);
    if (found == returned.tensors.end()) {
      result_.remarks.push_back(
          fmt::format("{}: {} returns no {}; it was not checked", place_of(dumps_, piece), kernel_.name, output));
      return;
    }
    const SelectedCall& selected = dumps_.calls()[piece.call];
    const Tensor recorded = dumps_.read_codes(selected, output, piece.batch, piece.head);
    const Tensor computed = head_of(found->second, piece.batch, piece.head);
    if (recorded.format != computed.format || recorded.shape != computed.shape) {
      throw Error(ErrorKind::input,
                  fmt::format("{}: {}/{}: is {}; {} returns {} for this q{}", dumps_.files()[selected.file],
                              selected.call->path, output, recorded.format->dtype, kernel_.name, computed.format->dtype,
                              output == "o" ? storage_hint(recorded) : ""));
    }
    const std::uint64_t allowed = output == "o" ? options_.ulp.value_or(0) : 0;
    const format::Format& f = *recorded.format;
    const TensorDifference all = difference(recorded, computed);
    const TensorDifference beyond =
        allowed == 0 ? all : difference(recorded, computed, [&](std::int64_t, std::uint64_t want, std::uint64_t have) {
          return ulp_beyond(f, want, have, allowed);
        });
    Json row = dump_row(dumps_, piece, kernel_.name, output, all.elements, returned.evidence);
    row["mismatches"] = beyond.mismatches;
    row["max_ulp"] = ulp_json(all.max_ulp);
    row["passed"] = beyond.mismatches == 0;
    std::string detail;
    const std::string passing = output == "o" && allowed > 0 ? passing_too(computed, allowed) : "";
    if (beyond.mismatches == 0 && !passing.empty()) {
      row["passed"] = false;
      row["mismatches"] = 1;
      detail = ulp_guard_text(passing, allowed);
    }
    if (beyond.mismatches > 0) {
      row["first"] = first_json(beyond);
      std::vector<std::int64_t> index = {piece.batch, piece.head};
      index.insert(index.end(), beyond.first->index.begin(), beyond.first->index.end());
      row["first"]["index"] = index;
      detail = fmt::format(
          "{} of {} elements differ{}, {}; the first: {}", beyond.mismatches, all.elements,
          allowed > 0 ? fmt::format(" by more than {} ulp", allowed) : "",
          ulp_json(all.max_ulp).is_null() ? "NaN among them" : fmt::format("by {} ulp at most", all.max_ulp),
          first_text(beyond, f));
      if (output == "o") detail += diagnosis_of(piece, computed, row);
      detail += "\n" + traced_row(kernel_, call, piece.batch, piece.head, beyond.first->index.front());
    }
    finish_dump_row(result_, place_of(dumps_, piece), std::move(row), detail);
  }

  /// What else --ulp would let pass.
  std::string passing_too(const Tensor& computed, std::uint64_t allowed) const {
    const MatrixD target = decode_matrix(computed, 0, computed.shape.at(0), computed.shape.at(1));
    const std::string passing = ulp_guard(target, allowed, *computed.format);
    return passing.empty() && reversible_ ? "an output with its rows in reverse order" : passing;
  }

  /// The replay stands in for a recipe's output: what it loses is what is plausible.
  std::string diagnosis_of(const Piece& piece, const Tensor& computed, Json& row) const {
    CheckedHead head = check_head(dumps_, piece, nullptr);
    head.emulated = decode_matrix(computed, 0, computed.shape.at(0), computed.shape.at(1)).leftCols(head.channels());
    const metric::Accuracy output = accuracy_of(head, head.o), own = accuracy_of(head, head.emulated);
    if (output.first_bad() && !own.first_bad()) {
      return "; o has NaN or Inf where the replay is finite, so the kernel's arithmetic on these inputs is not the "
             "cause";
    }
    const LocalErrors local = local_errors(head, kUsualFactor);
    const bool plausible = output.rel_l1() <= kUsualFactor * own.rel_l1() && local.within();
    if (output.first_bad() || own.first_bad() || plausible) return "";
    attention::Recipe tiles;
    tiles.name = kernel_.name;
    return "; " + diagnosis_text(dumps_, head, tiles, kUsualFactor, local, row);
  }

  const DumpSet& dumps_;
  const DumpCheckOptions& options_;
  const kernels::Kernel& kernel_;
  bool reversible_ = false;  ///< --ulp would let every head of the call in hand pass with its rows in reverse
  CheckResult& result_;
};

}  // namespace

void check_dump_bits(const DumpSet& dumps, const DumpCheckOptions& options, std::span<const Piece> pieces,
                     CheckResult& result) {
  BitCheck(dumps, options, result).run(pieces);
}

}  // namespace qattn::lab
