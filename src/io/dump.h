// Attention dumps: what a user captured from a model, call by call (file formats, section 1).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/array.h"
#include "io/attributes.h"
#include "io/hdf5_file.h"
#include "tensor/matrix.h"
#include "tensor/tensor.h"

namespace qattn::io {

inline constexpr std::string_view kDumpSchema = "qattn-dump/1";

enum class Layout : std::uint8_t {
  hnd,  ///< batch, heads, tokens, head_dim
  nhd,  ///< batch, tokens, heads, head_dim
};

enum class CausalAlign : std::uint8_t {
  top_left,      ///< query i sees keys 0 .. i
  bottom_right,  ///< query i sees keys 0 .. i + Nk - Nq
};

/// One sequence of a packed call: queries [q0, q1) attend keys [k0, k1).
struct Segment {
  std::int64_t q0 = 0, q1 = 0, k0 = 0, k1 = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

/// One attention call of a file, checked: shapes agree, no size is zero, q_heads is a multiple of kv_heads.
struct AttentionCall {
  std::string file;
  std::string path;    ///< the group's path inside the file, which is the call's name; "/" for the file itself
  std::string prefix;  ///< what precedes a dataset's name in the file: "layer_00/", "layer_00." or ""
  std::int64_t batch = 0;
  std::int64_t q_heads = 0, kv_heads = 0;
  std::int64_t q_tokens = 0, kv_tokens = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_original = 0;  ///< before zero padding; head_dim when the file does not say
  bool is_causal = false;
  CausalAlign causal_align = CausalAlign::top_left;
  double sm_scale = 0;  ///< as given, else 1 / sqrt(head_dim_original), root and quotient rounded
  const format::Format* q_format = nullptr;
  const format::Format* k_format = nullptr;
  const format::Format* v_format = nullptr;
  Layout layout = Layout::hnd;
  bool has_batch = true;              ///< false: the arrays have three dimensions, and batch is 1
  std::vector<std::string> datasets;  ///< the names of the arrays in the group, sorted
  std::vector<Segment> segments;      ///< the sequences of a packed call (batch is 1 then); empty otherwise
  Attributes attributes;              ///< everything in force at the call: model, source, licence, input, ...

  bool has(std::string_view dataset) const;
  /// The key/value head that query head `q_head` uses (grouped-query attention).
  std::int64_t kv_head(std::int64_t q_head) const { return q_head / (q_heads / kv_heads); }
};

/// One head's mask, [q_tokens, kv_tokens].
struct Mask {
  /// 1 where the query may attend the key, 0 where not (PyTorch's convention); empty for an additive mask.
  Matrix<std::uint8_t> attend;
  /// Added to the scaled scores sm_scale * Q K^T; absent for a boolean mask.
  std::optional<Tensor> bias;
};

/// Opens one dump: HDF5 (.h5, .hdf5), safetensors (.safetensors) or NumPy (.npz). In the two flat containers
/// "<call>/q" or "<call>.q" is dataset q of a call, plain "q" one of the file itself, and metadata texts or scalar
/// entries are the attributes, spelled alike ("is_causal", "<call>/sm_scale"); `schema` may be absent there.
/// Arrays of three dimensions ([H, N, D], or [N, H, D] under NHD) are a batch of one. Every failure is an Error(input)
/// that names file, call or dataset, and reason. Safe to use from several threads.
class DumpReader {
 public:
  explicit DumpReader(const std::string& path);
  ~DumpReader();
  DumpReader(DumpReader&&) noexcept;
  DumpReader& operator=(DumpReader&&) noexcept;

  const std::string& path() const;
  /// Sorted by path; never empty.
  const std::vector<AttentionCall>& calls() const { return calls_; }
  /// The call at `path`, or Error(usage).
  const AttentionCall& call(std::string_view path) const;

  /// One head of `q`, `k`, `v`, `o` or `do` as [tokens, head_dim], or of `lse` as [q_tokens], whatever the file's
  /// layout. `head` counts key/value heads for k and v, query heads otherwise. Only that head is read (npz: see
  /// NpzFile). Throws Error(usage) for an index out of range.
  Tensor read_head(const AttentionCall& call, std::string_view dataset, std::int64_t batch, std::int64_t head) const;

  /// The mask of one query head; the call must have one. A mask is [B | 1, Hq | 1, Nq, Nk] or [Nq, Nk].
  Mask read_mask(const AttentionCall& call, std::int64_t batch, std::int64_t head) const;

  /// Element [batch, kv_head] of `q_descale`, `k_descale` or `v_descale` [B, Hkv]; 1 when the call has none.
  /// Throws Error(input) unless it is positive and finite.
  double descale(const AttentionCall& call, std::string_view dataset, std::int64_t batch, std::int64_t kv_head) const;

 private:
  std::unique_ptr<ArrayFile> file_;
  std::vector<AttentionCall> calls_;
};

/// What DumpReader uses: the file as its container, by its extension; anything unknown is taken for HDF5.
std::unique_ptr<ArrayFile> open_array_file(const std::string& path);

/// The dumps that `inputs` name, each a file or a folder of them (*.h5 *.hdf5 *.safetensors *.npz, sorted by name, not
/// below subfolders). A file that is named twice is there once. Throws Error(input) when one does not exist or a
/// folder holds none.
std::vector<std::string> dump_files(const std::vector<std::string>& inputs);

/// Writes a dump, one head a chunk. The file appears when commit() returns.
class DumpWriter {
 public:
  /// `attributes` go to the root; `schema` (that of other files of calls: kKernelSchema) and `layout` are set here.
  explicit DumpWriter(const std::string& path, const Attributes& attributes = {}, Layout layout = Layout::hnd,
                      std::string_view schema = kDumpSchema);

  /// Starts a call; `attributes` override the root's.
  void begin_call(const std::string& call, const Attributes& attributes = {});
  /// A dataset that write_head() fills: [B, H, N, D], or [B, H, N] for lse, whatever the file's layout.
  void create(const std::string& call, const std::string& dataset, const format::Format& format,
              const std::vector<std::int64_t>& shape);
  /// `head_tensor` is [N, D] (or [N]) in the dataset's format.
  void write_head(const std::string& call, const std::string& dataset, std::int64_t batch, std::int64_t head,
                  const Tensor& head_tensor);
  /// A whole array in the file's own layout; also for arrays of other shapes (an additive mask, q_descale).
  void write(const std::string& call, const std::string& dataset, const Tensor& tensor);
  void write_boolean_mask(const std::string& call, const std::vector<std::int64_t>& shape,
                          const std::vector<std::uint8_t>& attend);
  /// Offsets of packed sequences: 0, ..., number of tokens.
  void write_cu_seqlens(const std::string& call, const std::vector<std::int64_t>& q,
                        const std::vector<std::int64_t>& k);

  void commit() { writer_.commit(); }

 private:
  Hdf5Writer writer_;
  Layout layout_;
};

}  // namespace qattn::io
