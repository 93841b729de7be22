#include "output_dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "format/encode.h"
#include "io/array.h"

namespace qattn::gpu {
namespace {

/// What a call may have beside its tensors; outputs of other kernels and gradients are left out.
constexpr std::string_view kExtras[] = {"mask", "cu_seqlens_q", "cu_seqlens_k", "q_descale", "k_descale", "v_descale"};

Tensor encoded(const format::Format& format, const std::vector<std::int64_t>& shape, const double* values) {
  Tensor tensor = make_tensor(format, shape);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.set_code(
        i, format::encode(format, values[i],
                          {format::Rounding::nearest_even, format::Overflow::inf_or_nan, format::Subnormals::keep}));
  }
  return tensor;
}

}  // namespace

OutputDump::OutputDump(const std::string& path, const lab::DumpSet& dumps, std::string_view schema,
                       const io::Attributes& attributes)
    : dumps_(dumps), writer_(path, attributes, io::Layout::hnd, schema) {}

void OutputDump::check(const lab::SelectedCall& call) {
  const io::AttentionCall& from = *call.call;
  const std::int64_t group = from.q_heads / from.kv_heads;
  if (call.first_head % group != 0 || call.last_head % group != 0) {
    throw Error(ErrorKind::usage, fmt::format("--heads {}:{} of {} is to be whole groups of {} query heads, which "
                                              "share a key/value head",
                                              call.first_head, call.last_head, call.label, group));
  }
  if (call.first_head == 0 && call.last_head == from.q_heads) return;
  for (const std::string_view extra : kExtras) {
    if (!from.has(extra)) continue;
    throw Error(ErrorKind::usage,
                fmt::format("{} has {}, so it is written with all of its heads or not at all", call.label, extra));
  }
}

void OutputDump::copy_inputs(const lab::SelectedCall& call, const std::string& name) {
  check(call);
  io::Attributes attributes = call.call->attributes;
  for (const char* own : {"schema", "layout"}) attributes.erase(own);
  writer_.begin_call(name, attributes);
  const std::int64_t group = call.call->q_heads / call.call->kv_heads;
  copy_heads(call, name, "q", call.first_head, call.last_head);
  for (const char* shared : {"k", "v"}) copy_heads(call, name, shared, call.first_head / group, call.last_head / group);
  copy_extras(call, name);
}

void OutputDump::begin_outputs(const lab::SelectedCall& call, const std::string& group, const format::Format& format,
                               const io::Attributes& attributes) {
  const io::AttentionCall& from = *call.call;
  const std::int64_t heads = call.last_head - call.first_head;
  writer_.begin_call(group, attributes);
  writer_.create(group, "o", format, {from.batch, heads, from.q_tokens, from.head_dim});
  writer_.create(group, "lse", format::kFP32, {from.batch, heads, from.q_tokens});
}

void OutputDump::write_head(const lab::SelectedCall& call, const std::string& group, const format::Format& format,
                            std::int64_t batch, std::int64_t head, const attention::Output& output) {
  const std::int64_t at = head - call.first_head;
  writer_.write_head(group, "o", batch, at, encoded(format, {output.o.rows(), output.o.cols()}, output.o.data()));
  const std::vector<std::int64_t> rows = {static_cast<std::int64_t>(output.lse.size())};
  writer_.write_head(group, "lse", batch, at, encoded(format::kFP32, rows, output.lse.data()));
}

void OutputDump::copy_heads(const lab::SelectedCall& call, const std::string& name, const std::string& dataset,
                            std::int64_t first, std::int64_t last) {
  for (std::int64_t b = 0; b < call.call->batch; ++b) {
    for (std::int64_t h = first; h < last; ++h) {
      const Tensor head = dumps_.read_codes(call, dataset, b, h);
      if (b == 0 && h == first) {
        writer_.create(name, dataset, *head.format,
                       {call.call->batch, last - first, head.shape.at(0), head.shape.at(1)});
      }
      writer_.write_head(name, dataset, b, h - first, head);
    }
  }
}

void OutputDump::copy_extras(const lab::SelectedCall& call, const std::string& name) {
  const io::AttentionCall& from = *call.call;
  if (!from.segments.empty()) {
    std::vector<std::int64_t> q = {0}, k = {0};
    for (const io::Segment& segment : from.segments) {
      q.push_back(segment.q1);
      k.push_back(segment.k1);
    }
    writer_.write_cu_seqlens(name, q, k);
  }
  const std::unique_ptr<io::ArrayFile> file = io::open_array_file(from.file);
  for (const std::string_view extra : kExtras) {
    if (!from.has(extra) || extra.starts_with("cu_")) continue;
    const std::string path = from.prefix + std::string(extra), where = fmt::format("{}: {}", from.file, path);
    const io::Array array = file->read_all(path);
    if (array.info.format == nullptr) {
      writer_.write_boolean_mask(name, array.info.shape, io::to_booleans(array, where));
    } else {
      writer_.write(name, std::string(extra), io::to_tensor(array, where));
    }
  }
}

}  // namespace qattn::gpu
