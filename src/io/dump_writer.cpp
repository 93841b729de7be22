// Writing dumps.
#include "io/dump.h"
#include "io/fail.h"

namespace qattn::io {
namespace {

/// HDF5 allows no chunk of 4 GiB or more, and a chunk is held in memory as a whole.
constexpr std::int64_t kLargestChunkBytes = std::int64_t{1} << 30;

/// One head a chunk: the last two dimensions of [B, H, N, D], the last of [B, H, N].
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

DumpWriter::DumpWriter(const std::string& path, const Attributes& attributes) : writer_(path) {
  const Attributes fixed = {{"schema", std::string(kDumpSchema)}, {"layout", std::string("HND")}};
  writer_.set_attributes("", override_attributes(attributes, fixed));
}

void DumpWriter::begin_call(const std::string& call, const Attributes& attributes) {
  if (call != "/") writer_.create_group(call);
  writer_.set_attributes(call == "/" ? "" : call, attributes);
}

void DumpWriter::create(const std::string& call, const std::string& dataset, const format::Format& format,
                        const std::vector<std::int64_t>& shape) {
  writer_.create_dataset(inside(call, dataset), format, shape, head_chunk(shape, code_bytes(format)));
}

void DumpWriter::write_head(const std::string& call, const std::string& dataset, std::int64_t batch, std::int64_t head,
                            const Tensor& head_tensor) {
  std::vector<std::int64_t> start = {batch, head}, count = {1, 1};
  start.resize(2 + head_tensor.shape.size(), 0);
  count.insert(count.end(), head_tensor.shape.begin(), head_tensor.shape.end());
  writer_.write(inside(call, dataset), start, count, head_tensor.codes);
}

void DumpWriter::write(const std::string& call, const std::string& dataset, const Tensor& tensor) {
  create(call, dataset, *tensor.format, tensor.shape);
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
