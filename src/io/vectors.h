// Recorded vectors: what instructions, scalar functions, kernels and matrix products returned (file formats,
// sections 2, 3, 4, 5, 7 and 8).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/array.h"
#include "io/attributes.h"
#include "io/dump.h"
#include "io/hdf5_file.h"
#include "tensor/tensor.h"

namespace qattn::io {

inline constexpr std::string_view kInstructionSchema = "qattn-mma-vectors/1";
inline constexpr std::string_view kScalarSchema = "qattn-scalar-vectors/1";
inline constexpr std::string_view kKernelSchema = "qattn-kernel-vectors/1";
inline constexpr std::string_view kBackwardSchema = "qattn-backward-vectors/1";
inline constexpr std::string_view kGemmSchema = "qattn-gemm-vectors/1";
inline constexpr std::string_view kDigestSchema = "qattn-scalar-digests/1";

/// The root attribute `schema` of a file (dumps in safetensors and npz without one are "qattn-dump/1"). Throws
/// Error(input) when the file cannot be read or has none.
std::string schema(const std::string& file);

/// Raw codes whose format the instruction or the function implies.
struct Codes {
  std::vector<std::int64_t> shape;
  std::size_t element_bytes = 4;  ///< 1, 2, 4 or 8
  std::vector<std::byte> bytes;   ///< row-major, little-endian

  std::int64_t size() const { return static_cast<std::int64_t>(bytes.size() / element_bytes); }
  std::uint64_t operator[](std::int64_t index) const;  ///< zero-extended
  void set(std::int64_t index, std::uint64_t code);
};

/// Codes that are all zero.
Codes make_codes(std::vector<std::int64_t> shape, std::size_t element_bytes);

/// Throws Error(input) that begins with `where` unless an element is as wide as files store codes of `format`.
void check_width(const Codes& codes, const format::Format& format, const std::string& where);

/// One case of section 2: n products of [M, K] by [N, K] transposed.
struct InstructionCase {
  std::string name;         ///< the group's path
  std::string instruction;  ///< "sm90.wgmma.m64n8k32.f32.e4m3.e4m3"
  std::string gpu;
  Attributes attributes;                                 ///< everything in force, `instruction` and `gpu` too
  std::int64_t n = 0, rows = 0, columns = 0, depth = 0;  ///< n, M, N, K as recorded
  Codes a, b, c, d;                                      ///< [n, M, K], [n, N, K], [n, M, N], [n, M, N]
  std::optional<Codes> scale_a, scale_b;                 ///< [n, M, K / block], [n, N, K / block]
};

/// One case of section 3.
struct ScalarCase {
  std::string name;
  std::string function;  ///< "ex2.approx.ftz.f32"
  std::string gpu;
  Attributes attributes;
  Codes x, y;  ///< equally long
};

/// One case of section 8.
struct DigestCase {
  std::string name;
  std::string function;
  std::string gpu;
  std::string build;
  Attributes attributes;
  std::vector<std::uint64_t> digest;  ///< 256
};

using Tensors = std::map<std::string, Tensor, std::less<>>;

/// What one kernel returned.
struct RecordedKernel {
  std::string name;  ///< the group's name under kernels/
  Attributes attributes;
  Tensors tensors;  ///< o, lse, dq, dk, dv; d for gemm

  bool has(std::string_view tensor) const { return tensors.find(tensor) != tensors.end(); }
};

/// One case of sections 4, 5 or 7: inputs, what was computed on the way, and what each kernel returned. q, k, v, do, o,
/// dq, dk and dv are [B, H, N, D] here whatever the file's layout. Shapes have been checked against each other.
struct RecordedCase {
  std::string file;
  std::string schema;  ///< kKernelSchema, kBackwardSchema or kGemmSchema
  std::string name;
  Attributes attributes;
  Tensors tensors;  ///< q, k, v (or a, b), k_mean, do, ..., and "quantized/sm90/per_thread/q_int8" by path
  std::vector<RecordedKernel> kernels;  ///< sorted by name
  AttentionCall call;                   ///< sizes, is_causal, causal_align, sm_scale; empty for gemm

  bool has(std::string_view tensor) const { return tensors.find(tensor) != tensors.end(); }
  /// Throws Error(input) when the case has no such tensor.
  const Tensor& tensor(std::string_view tensor) const;
};

/// Opens a file of any of the vector schemas and reads it case by case. A case is a group that holds datasets; groups
/// may nest. Attributes of parent groups and of the file hold unless a nearer one overrides them. Every failure is an
/// Error(input) that names file, group and reason.
class VectorReader {
 public:
  explicit VectorReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::string& schema() const { return schema_; }
  /// The cases' paths, sorted; never empty.
  const std::vector<std::string>& cases() const { return cases_; }

  /// Each needs the file to have the schema that fits.
  InstructionCase instruction(const std::string& name) const;
  ScalarCase scalar(const std::string& name) const;
  DigestCase digest(const std::string& name) const;
  /// Kernel, backward and GEMM vectors.
  RecordedCase recorded(const std::string& name) const;

 private:
  void require_schema(std::initializer_list<std::string_view> schemas) const;
  Codes read_codes(const std::string& name, const std::string& dataset, std::size_t rank) const;
  Tensors read_tensors(const std::string& group) const;
  std::vector<RecordedKernel> read_kernels(const std::string& name) const;

  Hdf5Reader file_;
  std::string schema_;
  std::vector<ArrayName> arrays_;
  std::vector<std::string> cases_;
};

/// Writes instruction vectors, scalar vectors or digests; one schema a file. The file appears when commit() returns.
class VectorWriter {
 public:
  VectorWriter(const std::string& path, std::string_view schema);

  void add(const InstructionCase& vectors);
  void add(const ScalarCase& vectors);
  void add(const DigestCase& digest);
  void commit() { writer_.commit(); }

 private:
  void begin(std::string_view schema, const std::string& name, Attributes attributes);
  void write_codes(const std::string& path, const Codes& codes);

  Hdf5Writer writer_;
  std::string schema_;
};

}  // namespace qattn::io
