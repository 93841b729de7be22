// Writing dumps.
#include "io/dump.h"
#include "io/fail.h"

namespace qattn::io {
namespace {

/// HDF5 allows no chunk of 4 GiB or more, and a chunk is held in memory as a whole.
constexpr std::int64_t kLargestChunkBytes = std::int64_t{1} << 30;

/// [B, H, N, D] as `layout` has it in the file; shapes without D (lse) have one order only.
std::vector<std::int64_t> in_file_order(std::vector<std::int64_t> sizes, Layout layout) {
  if (layout == Layout::nhd && sizes.size() == 4) std::swap(sizes[1], sizes[2]);
  return sizes;
}

/// One head a chunk: the last two dimensions of [B, H, N, D], the last of [B, H, N]; all of another array.
std::vector<std::int64_t> head_chunk(const std::vector<std::int64_t>& shape, std::size_t element_bytes) {
  std::vector<std::int64_t> chunk = shape;
  const std::size_t leading = shape.size() >= 3 ? 2 : 0;
  for (std::size_t i = 0; i < leading; ++i) chunk[i] = 1;
  std::int64_t bytes = element_count(chunk, element_bytes, "chunk");
  bytes *= static_cast<std::int64_t>(element_bytes);
  for (std::size_t i = leading; bytes > kLargestChunkBytes && i < chunk.size(); ++i) {
    while (bytes > kLargestChunkBytes && chunk[i] > 1) {
      bytes = bytes / chunk[i] * ((chunk[i] + 1) / 2);
      chunk[i] = (chunk[i] + 1) / 2;
    }
  }
  return chunk;
}

std::string inside(const std::string& call, const std::string& dataset) {
  return call.empty() || call == "/" ? dataset : call + "/" + dataset;
}

}  // namespace

DumpWriter::DumpWriter(const std::string& path, const Attributes& attributes, Layout layout, std::string_view schema)
    : writer_(path), layout_(layout) {
  const std::string layout_name = layout == Layout::hnd ? "HND" : "NHD";
  const Attributes fixed = {{"schema", std::string(schema)}, {"layout", layout_name}};
  writer_.set_attributes("", override_attributes(attributes, fixed));
}

void DumpWriter::begin_call(const std::string& call, const Attributes& attributes) {
  if (call != "/") writer_.create_group(call);
  writer_.set_attributes(call == "/" ? "" : call, attributes);
}

void DumpWriter::create(const std::string& call, const std::string& dataset, const format::Format& format,
                        const std::vector<std::int64_t>& shape) {
  writer_.create_dataset(inside(call, dataset), format, in_file_order(shape, layout_),
                         in_file_order(head_chunk(shape, code_bytes(format)), layout_));
}

void DumpWriter::write_head(const std::string& call, const std::string& dataset, std::int64_t batch, std::int64_t head,
                            const Tensor& head_tensor) {
  std::vector<std::int64_t> start = {batch, head}, count = {1, 1};
  start.resize(2 + head_tensor.shape.size(), 0);
  count.insert(count.end(), head_tensor.shape.begin(), head_tensor.shape.end());
  writer_.write(inside(call, dataset), in_file_order(start, layout_), in_file_order(count, layout_), head_tensor.codes);
}

void DumpWriter::write(const std::string& call, const std::string& dataset, const Tensor& tensor) {
  const std::vector<std::int64_t> chunk = head_chunk(in_file_order(tensor.shape, layout_), tensor.element_bytes());
  writer_.create_dataset(inside(call, dataset), *tensor.format, tensor.shape, in_file_order(chunk, layout_));
  writer_.write(inside(call, dataset), std::vector<std::int64_t>(tensor.shape.size(), 0), tensor.shape, tensor.codes);
}

void DumpWriter::write_boolean_mask(const std::string& call, const std::vector<std::int64_t>& shape,
                                    const std::vector<std::uint8_t>& attend) {
  const std::string path = inside(call, "mask");
  writer_.create_booleans(path, shape, head_chunk(shape, 1));
  writer_.write(path, std::vector<std::int64_t>(shape.size(), 0), shape, std::as_bytes(std::span(attend)));
}

void DumpWriter::write_cu_seqlens(const std::string& call, const std::vector<std::int64_t>& q,
                                  const std::vector<std::int64_t>& k) {
  writer_.write_integers(inside(call, "cu_seqlens_q"), q);
  writer_.write_integers(inside(call, "cu_seqlens_k"), k);
}

}  // namespace qattn::io
