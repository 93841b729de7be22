// Reading dumps: find the calls, check them, then fetch head by head.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "format/encode.h"
#include "io/attention_shapes.h"
#include "io/dump.h"
#include "io/fail.h"
#include "io/npz.h"
#include "io/safetensors.h"

namespace qattn::io {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> kExtensions = {".h5", ".hdf5", ".safetensors", ".npz"};

std::string extension_of(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return extension;
}

void check_schema(const ArrayFile& file) {
  const auto schema = find_text(file.attributes(""), "schema", file.path());
  const bool flat = dynamic_cast<const Hdf5Reader*>(&file) == nullptr;
  if (!schema && flat) return;
  if (!schema) fail(file.path(), "has no attribute 'schema'; an attention dump needs schema = \"qattn-dump/1\"");
  if (*schema == kDumpSchema) return;
  fail(file.path(), "is a file of schema '" + *schema + "'; an attention dump has schema = \"qattn-dump/1\"");
}

// ---- One call ----

/// The arrays that share a prefix ("layer_00/"), by name.
using Group = std::vector<ArrayName>;

std::string prefix_of(const ArrayName& array) { return array.path.substr(0, array.path.size() - array.name.size()); }

std::string array_place(const AttentionCall& call, std::string_view dataset) {
  return place(call.file, call.prefix + std::string(dataset));
}

std::vector<std::int64_t> read_offsets(const ArrayFile& file, const AttentionCall& call, const std::string& dataset,
                                       std::int64_t tokens) {
  const std::string where = array_place(call, dataset);
  const ArrayInfo info = file.info(call.prefix + dataset);
  if (info.shape.size() != 1 || info.shape[0] < 2) {
    fail(where, "has shape " + to_text(info.shape) + "; it must be [sequences + 1]");
  }
  std::vector<std::int64_t> offsets = to_integers(file.read_all(call.prefix + dataset), where);
  if (offsets.front() != 0 || offsets.back() != tokens || !std::is_sorted(offsets.begin(), offsets.end())) {
    fail(where, "must rise from 0 to the number of tokens, " + std::to_string(tokens));
  }
  return offsets;
}

/// The packed sequences of a call. One list of offsets serves both sides when they have the same number of tokens.
std::vector<Segment> read_segments(const ArrayFile& file, const AttentionCall& call, const std::string& where) {
  const bool has_q = call.has("cu_seqlens_q"), has_k = call.has("cu_seqlens_k");
  if (!has_q && !has_k) return {};
  if (call.batch != 1) fail(where, "packed sequences (cu_seqlens) need batch 1, not " + std::to_string(call.batch));
  if ((!has_q || !has_k) && call.q_tokens != call.kv_tokens) {
    fail(where, std::string(has_q ? "cu_seqlens_k" : "cu_seqlens_q") + " is missing and q and k differ in tokens");
  }
  const auto q = read_offsets(file, call, has_q ? "cu_seqlens_q" : "cu_seqlens_k", call.q_tokens);
  const auto k = read_offsets(file, call, has_k ? "cu_seqlens_k" : "cu_seqlens_q", call.kv_tokens);
  if (q.size() != k.size()) fail(where, "cu_seqlens_q and cu_seqlens_k differ in the number of sequences");
  std::vector<Segment> segments;
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    segments.push_back({q[i], q[i + 1], k[i], k[i + 1]});
    if (q[i] < q[i + 1] && k[i] == k[i + 1]) fail(where, "sequence " + std::to_string(i) + " has queries but no keys");
  }
  return segments;
}

const format::Format* format_of_array(const ArrayFile& file, const AttentionCall& call, const std::string& dataset) {
  const ArrayInfo info = file.info(call.prefix + dataset);
  // An empty block goes through the same check as the data will, and its message says what to add.
  if (info.format == nullptr) to_tensor(Array{info, {}}, array_place(call, dataset));
  return info.format;
}

void check_shape(const ArrayFile& file, const AttentionCall& call, const std::string& dataset,
                 const std::vector<std::int64_t>& expected) {
  if (!call.has(dataset)) return;
  const std::vector<std::int64_t> shape = file.info(call.prefix + dataset).shape;
  if (shape == expected) return;
  fail(array_place(call, dataset),
       "has shape " + to_text(shape) + "; with this q, k and v it must be " + to_text(expected));
}

void check_mask_shape(const ArrayFile& file, const AttentionCall& call) {
  if (!call.has("mask")) return;
  const std::vector<std::int64_t> shape = file.info(call.prefix + "mask").shape;
  const std::size_t rank = shape.size();
  const bool fits =
      (rank == 2 || rank == 4) && shape[rank - 2] == call.q_tokens && shape[rank - 1] == call.kv_tokens &&
      (rank == 2 || ((shape[0] == 1 || shape[0] == call.batch) && (shape[1] == 1 || shape[1] == call.q_heads)));
  if (fits) return;
  const std::string tokens = std::to_string(call.q_tokens) + ", " + std::to_string(call.kv_tokens) + "]";
  fail(array_place(call, "mask"), "has shape " + to_text(shape) + "; it must be [" + tokens + " or [1 or " +
                                      std::to_string(call.batch) + ", 1 or " + std::to_string(call.q_heads) + ", " +
                                      tokens);
}

void check_optional_shapes(const ArrayFile& file, const AttentionCall& call) {
  const auto like_q = shape_in_layout(call, call.q_heads, call.q_tokens);
  check_shape(file, call, "o", like_q);
  check_shape(file, call, "do", like_q);
  std::vector<std::int64_t> rows = {call.batch, call.q_heads, call.q_tokens};
  if (!call.has_batch) rows.erase(rows.begin());
  check_shape(file, call, "lse", rows);
  for (const char* name : {"q_descale", "k_descale", "v_descale"}) {
    check_shape(file, call, name, {call.batch, call.kv_heads});
  }
  check_mask_shape(file, call);
}

AttentionCall make_call(const ArrayFile& file, const std::string& prefix, const Group& group) {
  AttentionCall call;
  call.file = file.path();
  call.prefix = prefix;
  call.path = group.front().group.empty() ? "/" : group.front().group;
  for (const ArrayName& array : group) call.datasets.push_back(array.name);
  std::sort(call.datasets.begin(), call.datasets.end());
  const std::string where = place(call.file, call.path);
  for (const char* name : {"q", "k", "v"}) {
    if (!call.has(name)) fail(where, "dataset '" + std::string(name) + "' is missing; a call holds q, k and v");
  }
  call.attributes = file.attributes(group.front().group);
  set_layout(call, call.attributes, where);
  set_shapes(call, file.info(prefix + "q").shape, file.info(prefix + "k").shape, file.info(prefix + "v").shape, where);
  set_scale(call, call.attributes, where);
  call.q_format = format_of_array(file, call, "q");
  call.k_format = format_of_array(file, call, "k");
  call.v_format = format_of_array(file, call, "v");
  check_optional_shapes(file, call);
  call.segments = read_segments(file, call, where);
  return call;
}

std::vector<AttentionCall> find_calls(const ArrayFile& file) {
  std::map<std::string, Group> groups;
  for (const ArrayName& array : file.arrays()) groups[prefix_of(array)].push_back(array);
  std::vector<AttentionCall> calls;
  for (const auto& [prefix, group] : groups) {
    const bool is_call = std::any_of(group.begin(), group.end(), [](const ArrayName& array) {
      return array.name == "q" || array.name == "k" || array.name == "v";
    });
    if (is_call) calls.push_back(make_call(file, prefix, group));
  }
  if (calls.empty()) fail(file.path(), "holds no attention call; a call is a group with datasets q, k and v");
  std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return calls;
}

void check_index(const AttentionCall& call, const char* what, std::int64_t index, std::int64_t count) {
  if (index >= 0 && index < count) return;
  throw Error(ErrorKind::usage, place(call.file, call.path) + ": " + what + " " + std::to_string(index) +
                                    " is out of range; the call has " + std::to_string(count));
}

}  // namespace

bool AttentionCall::has(std::string_view dataset) const {
  return std::binary_search(datasets.begin(), datasets.end(), dataset);
}

std::unique_ptr<ArrayFile> open_array_file(const std::string& path) {
  const std::string extension = extension_of(path);
  if (extension == ".safetensors") return std::make_unique<SafetensorsFile>(path);
  if (extension == ".npz") return std::make_unique<NpzFile>(path);
  return std::make_unique<Hdf5Reader>(path);
}

DumpReader::DumpReader(const std::string& path) : file_(open_array_file(path)) {
  check_schema(*file_);
  calls_ = find_calls(*file_);
}

DumpReader::~DumpReader() = default;
DumpReader::DumpReader(DumpReader&&) noexcept = default;
DumpReader& DumpReader::operator=(DumpReader&&) noexcept = default;

const std::string& DumpReader::path() const { return file_->path(); }

const AttentionCall& DumpReader::call(std::string_view path) const {
  const auto found = std::find_if(calls_.begin(), calls_.end(), [&](const auto& call) { return call.path == path; });
  if (found != calls_.end()) return *found;
  throw Error(ErrorKind::usage, file_->path() + ": no call '" + std::string(path) + "'; `qattn info` lists them");
}

Tensor DumpReader::read_head(const AttentionCall& call, std::string_view dataset, std::int64_t batch,
                             std::int64_t head) const {
  const std::string where = array_place(call, dataset);
  if (!call.has(dataset)) fail(where, "the call has no such dataset");
  const bool is_key_side = dataset == "k" || dataset == "v";
  check_index(call, "batch", batch, call.batch);
  check_index(call, "head", head, is_key_side ? call.kv_heads : call.q_heads);
  const std::int64_t tokens = is_key_side ? call.kv_tokens : call.q_tokens;
  const bool rows_only = dataset == "lse";
  std::vector<std::int64_t> start = {batch, head, 0, 0}, count = {1, 1, tokens, call.head_dim};
  if (rows_only) {
    start.pop_back();
    count.pop_back();
  } else if (call.layout == Layout::nhd) {
    std::swap(start[1], start[2]);
    std::swap(count[1], count[2]);
  }
  if (!call.has_batch) {
    start.erase(start.begin());
    count.erase(count.begin());
  }
  Array block = file_->read(call.prefix + std::string(dataset), start, count);
  block.info.shape = rows_only ? std::vector<std::int64_t>{tokens} : std::vector<std::int64_t>{tokens, call.head_dim};
  return to_tensor(std::move(block), where);
}

Mask DumpReader::read_mask(const AttentionCall& call, std::int64_t batch, std::int64_t head) const {
  const std::string where = array_place(call, "mask");
  if (!call.has("mask")) fail(where, "the call has no mask");
  check_index(call, "batch", batch, call.batch);
  check_index(call, "head", head, call.q_heads);
  const std::string path = call.prefix + "mask";
  const ArrayInfo info = file_->info(path);
  std::vector<std::int64_t> start = {0, 0}, count = {call.q_tokens, call.kv_tokens};
  if (info.shape.size() == 4) {
    start.insert(start.begin(), {info.shape[0] == 1 ? 0 : batch, info.shape[1] == 1 ? 0 : head});
    count.insert(count.begin(), {1, 1});
  }
  Array block = file_->read(path, start, count);
  block.info.shape = {call.q_tokens, call.kv_tokens};
  Mask mask;
  const bool additive = info.format != nullptr && info.format->specials != format::Specials::integer;
  if (additive) {
    mask.bias = to_tensor(std::move(block), where);
  } else {
    const std::vector<std::uint8_t> attend = to_booleans(block, where);
    mask.attend = Eigen::Map<const Matrix<std::uint8_t>>(attend.data(), call.q_tokens, call.kv_tokens);
  }
  return mask;
}

double DumpReader::descale(const AttentionCall& call, std::string_view dataset, std::int64_t batch,
                           std::int64_t kv_head) const {
  if (!call.has(dataset)) return 1.0;
  check_index(call, "batch", batch, call.batch);
  check_index(call, "head", kv_head, call.kv_heads);
  const std::string where = array_place(call, dataset);
  const Tensor one = to_tensor(file_->read(call.prefix + std::string(dataset), {batch, kv_head}, {1, 1}), where);
  const double value = format::decode(*one.format, one.code(0));
  if (!(std::isfinite(value) && value > 0)) {
    fail(where, "element [" + std::to_string(batch) + ", " + std::to_string(kv_head) + "] is no positive finite scale");
  }
  return value;
}

std::vector<std::string> dump_files(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  std::set<std::string> seen;
  const auto add = [&](const fs::path& path) {
    std::error_code ignored;
    const fs::path canonical = fs::weakly_canonical(path, ignored);
    if (seen.insert(canonical.string()).second) files.push_back(path.string());
  };
  for (const std::string& input : inputs) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (!fs::exists(status)) fail(input, "does not exist; give a dump or a folder of dumps");
    if (!fs::is_directory(status)) {
      add(input);
      continue;
    }
    std::vector<fs::path> found;
    for (fs::directory_iterator entry(input, error), end; !error && entry != end; entry.increment(error)) {
      const std::string extension = extension_of(entry->path().string());
      const bool known = std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end();
      std::error_code ignored;
      if (known && entry->path().filename().string().front() != '.' && fs::is_regular_file(entry->status(ignored))) {
        found.push_back(entry->path());
      }
    }
    if (error) fail(input, "cannot be listed: " + error.message());
    if (found.empty()) fail(input, "holds no dump (*.h5 *.hdf5 *.safetensors *.npz)");
    std::sort(found.begin(), found.end());
    for (const fs::path& path : found) add(path);
  }
  return files;
}

}  // namespace qattn::io
