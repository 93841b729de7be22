// Vector files, both ways.
#include "io/vectors.h"

#include <algorithm>
#include <array>
#include <set>

#include "io/attention_shapes.h"
#include "io/fail.h"
#include "io/little_endian.h"

namespace qattn::io {
namespace {

constexpr std::array kVectorSchemas = {kInstructionSchema, kScalarSchema, kKernelSchema,
                                       kBackwardSchema,    kGemmSchema,   kDigestSchema};
constexpr std::size_t kDigestBlocks = 256;

std::string schema_of(const ArrayFile& file) {
  const auto found = find_text(file.attributes(""), "schema", file.path());
  if (found) return *found;
  if (dynamic_cast<const Hdf5Reader*>(&file) == nullptr) return std::string(kDumpSchema);
  fail(file.path(), "has no attribute 'schema'; QAttn's files say what they hold, e.g. schema = \"qattn-dump/1\"");
}

bool is_inside(const std::string& path, const std::string& group) {
  return group.empty() || (path.size() > group.size() && path.starts_with(group) && path[group.size()] == '/');
}

/// The outermost groups that hold datasets: what lies deeper belongs to the case.
std::vector<std::string> find_cases(const std::vector<ArrayName>& arrays) {
  std::set<std::string> groups;
  for (const ArrayName& array : arrays) groups.insert(array.group);
  std::vector<std::string> cases;
  for (const std::string& group : groups) {
    const bool inner = std::any_of(groups.begin(), groups.end(),
                                   [&](const std::string& outer) { return outer != group && is_inside(group, outer); });
    if (!inner) cases.push_back(group);
  }
  return cases;
}

void check_codes_shape(const Codes& codes, const std::vector<std::int64_t>& expected, const std::string& where) {
  if (codes.shape != expected) {
    fail(where, "has shape " + to_text(codes.shape) + "; beside a and b it must be " + to_text(expected));
  }
}

/// Scales are [n, M | N, K / block] for some block that divides K.
void check_scale_shape(const std::optional<Codes>& scale, std::int64_t n, std::int64_t lines, std::int64_t depth,
                       const std::string& where) {
  if (!scale) return;
  const bool fits =
      scale->shape[0] == n && scale->shape[1] == lines && scale->shape[2] > 0 && depth % scale->shape[2] == 0;
  if (!fits) fail(where, "has shape " + to_text(scale->shape) + "; it must be [n, lines, K / block] as a or b is");
}

/// [B, N, H, D] as [B, H, N, D].
Tensor to_hnd(const Tensor& source) {
  const std::int64_t batch = source.shape[0], tokens = source.shape[1], heads = source.shape[2], dim = source.shape[3];
  Tensor target = make_tensor(*source.format, {batch, heads, tokens, dim});
  const auto row = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(dim) * source.element_bytes());
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t n = 0; n < tokens; ++n) {
      for (std::int64_t h = 0; h < heads; ++h) {
        std::copy_n(source.codes.begin() + ((b * tokens + n) * heads + h) * row, row,
                    target.codes.begin() + ((b * heads + h) * tokens + n) * row);
      }
    }
  }
  return target;
}

void bring_to_hnd(Tensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    const bool follows_layout = name == "q" || name == "k" || name == "v" || name == "do" || name == "o" ||
                                name == "dq" || name == "dk" || name == "dv";
    if (follows_layout && tensor.shape.size() == 4) tensor = to_hnd(tensor);
  }
}

void check_tensor_shape(const Tensors& tensors, std::string_view name, const std::vector<std::int64_t>& expected,
                        const std::string& where) {
  const auto found = tensors.find(name);
  if (found == tensors.end() || found->second.shape == expected) return;
  fail(where + "/" + std::string(name),
       "has shape " + to_text(found->second.shape) + "; it must be " + to_text(expected));
}

void check_attention(RecordedCase& recorded, const std::string& where) {
  AttentionCall& call = recorded.call;
  call.file = recorded.file;
  call.path = recorded.name;
  set_layout(call, recorded.attributes, where);
  if (call.layout == Layout::nhd) {
    bring_to_hnd(recorded.tensors);
    for (RecordedKernel& kernel : recorded.kernels) bring_to_hnd(kernel.tensors);
    call.layout = Layout::hnd;
  }
  const Tensor &q = recorded.tensor("q"), &k = recorded.tensor("k"), &v = recorded.tensor("v");
  set_shapes(call, q.shape, k.shape, v.shape, where);
  set_scale(call, recorded.attributes, where);
  call.q_format = q.format;
  call.k_format = k.format;
  call.v_format = v.format;
  for (const auto& [name, tensor] : recorded.tensors) call.datasets.push_back(name);
  const std::vector<std::int64_t> scales = {call.batch, call.kv_heads};
  check_tensor_shape(recorded.tensors, "do", q.shape, where);
  check_tensor_shape(recorded.tensors, "k_mean", {call.batch, call.kv_heads, 1, call.head_dim}, where);
  for (const char* name : {"q_descale", "k_descale", "v_descale"}) {
    check_tensor_shape(recorded.tensors, name, scales, where);
  }
  for (const RecordedKernel& kernel : recorded.kernels) {
    const std::string inside = where + "/kernels/" + kernel.name;
    for (const char* name : {"o", "dq"}) check_tensor_shape(kernel.tensors, name, q.shape, inside);
    for (const char* name : {"dk", "dv"}) check_tensor_shape(kernel.tensors, name, k.shape, inside);
    check_tensor_shape(kernel.tensors, "lse", {call.batch, call.q_heads, call.q_tokens}, inside);
  }
}

void check_gemm(const RecordedCase& recorded, const std::string& where) {
  const Tensor &a = recorded.tensor("a"), &b = recorded.tensor("b");
  if (a.shape.size() != 2 || b.shape.size() != 2 || a.shape[1] != b.shape[1] || a.elements() == 0 ||
      b.elements() == 0) {
    fail(where, "a must be [M, K] and b [N, K]; here a " + to_text(a.shape) + ", b " + to_text(b.shape));
  }
  for (const RecordedKernel& kernel : recorded.kernels) {
    check_tensor_shape(kernel.tensors, "d", {a.shape[0], b.shape[0]}, where + "/kernels/" + kernel.name);
  }
}

}  // namespace

std::string schema(const std::string& file) { return schema_of(*open_array_file(file)); }

std::uint64_t Codes::operator[](std::int64_t index) const {
  return load_little_endian(bytes.data() + static_cast<std::size_t>(index) * element_bytes, element_bytes);
}

void Codes::set(std::int64_t index, std::uint64_t code) {
  const std::size_t first = static_cast<std::size_t>(index) * element_bytes;
  for (std::size_t i = 0; i < element_bytes; ++i) bytes[first + i] = static_cast<std::byte>(code >> (8 * i) & 0xff);
}

Codes make_codes(std::vector<std::int64_t> shape, std::size_t element_bytes) {
  const auto count = static_cast<std::size_t>(element_count(shape, element_bytes, "codes"));
  return {std::move(shape), element_bytes, std::vector<std::byte>(count * element_bytes)};
}

void check_width(const Codes& codes, const format::Format& format, const std::string& where) {
  const std::size_t bytes = code_bytes(format);
  if (codes.element_bytes == bytes) return;
  fail(where, "holds " + std::to_string(codes.element_bytes) + "-byte unsigned integers; codes of " +
                  std::string(format.name) + " are " + std::to_string(bytes) + "-byte unsigned integers");
}

const Tensor& RecordedCase::tensor(std::string_view tensor) const {
  const auto found = tensors.find(tensor);
  if (found == tensors.end()) fail(place(file, name), "dataset '" + std::string(tensor) + "' is missing");
  return found->second;
}

// ---- Reading ----

VectorReader::VectorReader(const std::string& path) : file_(path), schema_(schema_of(file_)) {
  if (std::find(kVectorSchemas.begin(), kVectorSchemas.end(), schema_) == kVectorSchemas.end()) {
    std::string known;
    for (const std::string_view name : kVectorSchemas) known += " " + std::string(name);
    fail(path, "is a file of schema '" + schema_ + "', no vector file; known are:" + known);
  }
  arrays_ = file_.arrays();
  cases_ = find_cases(arrays_);
  if (cases_.empty()) fail(path, "holds no case; a case is a group with datasets");
}

void VectorReader::require_schema(std::initializer_list<std::string_view> schemas) const {
  if (std::find(schemas.begin(), schemas.end(), schema_) == schemas.end()) {
    fail(path(), "is a file of schema '" + schema_ + "', not of '" + std::string(*schemas.begin()) + "'");
  }
}

Codes VectorReader::read_codes(const std::string& name, const std::string& dataset, std::size_t rank) const {
  const std::string path = name.empty() ? dataset : name + "/" + dataset;
  const std::string where = place(file_.path(), path);
  if (!file_.exists(path)) fail(place(file_.path(), name), "dataset '" + dataset + "' is missing");
  Array array = file_.read_all(path);
  if (array.info.shape.size() != rank) {
    fail(where, "has shape " + to_text(array.info.shape) + "; it must have " + std::to_string(rank) + " dimensions");
  }
  if (array.info.storage != Storage::integer || array.info.is_signed) {
    fail(where, "holds " + describe(array.info) + "; it must hold unsigned integers, as files store raw codes");
  }
  return {std::move(array.info.shape), array.info.element_bytes, std::move(array.bytes)};
}

InstructionCase VectorReader::instruction(const std::string& name) const {
  require_schema({kInstructionSchema});
  const std::string where = place(path(), name);
  InstructionCase result;
  result.name = name;
  result.attributes = file_.attributes(name);
  result.attributes.erase("schema");
  result.instruction = require_text(result.attributes, "instruction", where);
  result.gpu = find_text(result.attributes, "gpu", where).value_or("");
  result.a = read_codes(name, "a", 3);
  result.b = read_codes(name, "b", 3);
  result.c = read_codes(name, "c", 3);
  result.d = read_codes(name, "d", 3);
  result.n = result.a.shape[0];
  result.rows = result.a.shape[1];
  result.columns = result.b.shape[1];
  result.depth = result.a.shape[2];
  if (result.a.size() == 0 || result.b.shape != std::vector{result.n, result.columns, result.depth} ||
      result.columns == 0) {
    fail(where,
         "a must be [n, M, K] and b [n, N, K]; here a " + to_text(result.a.shape) + ", b " + to_text(result.b.shape));
  }
  check_codes_shape(result.c, {result.n, result.rows, result.columns}, where + "/c");
  check_codes_shape(result.d, {result.n, result.rows, result.columns}, where + "/d");
  if (file_.exists(name + "/scale_a")) result.scale_a = read_codes(name, "scale_a", 3);
  if (file_.exists(name + "/scale_b")) result.scale_b = read_codes(name, "scale_b", 3);
  check_scale_shape(result.scale_a, result.n, result.rows, result.depth, where + "/scale_a");
  check_scale_shape(result.scale_b, result.n, result.columns, result.depth, where + "/scale_b");
  return result;
}

ScalarCase VectorReader::scalar(const std::string& name) const {
  require_schema({kScalarSchema});
  const std::string where = place(path(), name);
  ScalarCase result;
  result.name = name;
  result.attributes = file_.attributes(name);
  result.attributes.erase("schema");
  result.function = require_text(result.attributes, "function", where);
  result.gpu = find_text(result.attributes, "gpu", where).value_or("");
  result.x = read_codes(name, "x", 1);
  result.y = read_codes(name, "y", 1);
  if (result.x.shape != result.y.shape || result.x.size() == 0) {
    fail(where, "x and y must be equally long and not empty; here x " + to_text(result.x.shape) + ", y " +
                    to_text(result.y.shape));
  }
  return result;
}

DigestCase VectorReader::digest(const std::string& name) const {
  require_schema({kDigestSchema});
  const std::string where = place(path(), name);
  DigestCase result;
  result.name = name;
  result.attributes = file_.attributes(name);
  result.attributes.erase("schema");
  result.function = require_text(result.attributes, "function", where);
  result.gpu = find_text(result.attributes, "gpu", where).value_or("");
  result.build = find_text(result.attributes, "build", where).value_or("");
  const Codes sums = read_codes(name, "digest", 1);
  if (sums.element_bytes != 8 || sums.size() != kDigestBlocks) {
    fail(where + "/digest", "must be 256 unsigned integers of 64 bits; it has shape " + to_text(sums.shape));
  }
  for (std::int64_t i = 0; i < sums.size(); ++i) result.digest.push_back(sums[i]);
  return result;
}

Tensors VectorReader::read_tensors(const std::string& group) const {
  const std::size_t skipped = group.empty() ? 0 : group.size() + 1;
  Tensors tensors;
  for (const ArrayName& array : arrays_) {
    const std::string_view inner = std::string_view(array.path).substr(std::min(skipped, array.path.size()));
    if (!is_inside(array.path, group) || inner.starts_with("kernels/")) continue;
    tensors.emplace(inner, to_tensor(file_.read_all(array.path), place(path(), array.path)));
  }
  return tensors;
}

std::vector<RecordedKernel> VectorReader::read_kernels(const std::string& name) const {
  const std::string group = name.empty() ? "kernels" : name + "/kernels";
  std::vector<RecordedKernel> kernels;
  if (file_.exists(group)) {
    for (const auto& child : file_.children(group)) {
      if (child.kind != Hdf5Reader::Kind::group) continue;
      const std::string inside = group + "/" + child.name;
      kernels.push_back({child.name, file_.own_attributes(inside), read_tensors(inside)});
    }
  }
  if (kernels.empty()) fail(place(path(), name), "has no group kernels/<name> with a recorded output to compare with");
  return kernels;
}

RecordedCase VectorReader::recorded(const std::string& name) const {
  require_schema({kKernelSchema, kBackwardSchema, kGemmSchema});
  const std::string where = place(path(), name);
  RecordedCase result;
  result.file = path();
  result.schema = schema_;
  result.name = name;
  result.attributes = file_.attributes(name);
  result.attributes.erase("schema");
  result.tensors = read_tensors(name);
  result.kernels = read_kernels(name);
  if (schema_ == kGemmSchema) {
    check_gemm(result, where);
  } else {
    check_attention(result, where);
  }
  result.call.attributes = result.attributes;
  return result;
}

// ---- Writing ----

VectorWriter::VectorWriter(const std::string& path, std::string_view schema) : writer_(path), schema_(schema) {
  writer_.set_attribute("", "schema", schema_);
}

void VectorWriter::begin(std::string_view schema, const std::string& name, Attributes attributes) {
  if (schema != schema_)
    throw Error(ErrorKind::internal, name + ": a file of schema " + schema_ + " holds no such case");
  attributes.erase("schema");
  writer_.create_group(name);
  writer_.set_attributes(name, attributes);
}

void VectorWriter::write_codes(const std::string& path, const Codes& codes) {
  constexpr std::int64_t kLongestChunk = 262144;
  std::vector<std::int64_t> chunk = codes.shape;
  if (chunk.size() == 1) chunk[0] = std::min(chunk[0], kLongestChunk);
  writer_.create_codes(path, codes.element_bytes, codes.shape, chunk);
  writer_.write(path, std::vector<std::int64_t>(codes.shape.size(), 0), codes.shape, codes.bytes);
}

void VectorWriter::add(const InstructionCase& vectors) {
  Attributes attributes = vectors.attributes;
  attributes["instruction"] = vectors.instruction;
  attributes["gpu"] = vectors.gpu;
  begin(kInstructionSchema, vectors.name, attributes);
  write_codes(vectors.name + "/a", vectors.a);
  write_codes(vectors.name + "/b", vectors.b);
  write_codes(vectors.name + "/c", vectors.c);
  write_codes(vectors.name + "/d", vectors.d);
  if (vectors.scale_a) write_codes(vectors.name + "/scale_a", *vectors.scale_a);
  if (vectors.scale_b) write_codes(vectors.name + "/scale_b", *vectors.scale_b);
}

void VectorWriter::add(const ScalarCase& vectors) {
  Attributes attributes = vectors.attributes;
  attributes["function"] = vectors.function;
  attributes["gpu"] = vectors.gpu;
  begin(kScalarSchema, vectors.name, attributes);
  write_codes(vectors.name + "/x", vectors.x);
  write_codes(vectors.name + "/y", vectors.y);
}

void VectorWriter::add(const DigestCase& digest) {
  Attributes attributes = digest.attributes;
  attributes["function"] = digest.function;
  attributes["gpu"] = digest.gpu;
  attributes["build"] = digest.build;
  begin(kDigestSchema, digest.name, attributes);
  Codes sums = make_codes({static_cast<std::int64_t>(digest.digest.size())}, 8);
  for (std::int64_t i = 0; i < sums.size(); ++i) sums.set(i, digest.digest[static_cast<std::size_t>(i)]);
  write_codes(digest.name + "/digest", sums);
}

}  // namespace qattn::io
