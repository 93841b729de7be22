#include "lab/reference_cache.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/byte_stream.h"
#include "base/error.h"
#include "io/atomic_file.h"
#include "io/input_file.h"
#include "io/sha256.h"

namespace qattn::lab {
namespace {

namespace fs = std::filesystem;
using attention::Output;
using attention::Problem;

/// Changes whenever a reference's bits may: its definition, or the form of a file.
constexpr std::string_view kVersion = "qattn float64 reference 2\n";
constexpr std::size_t kDigestBytes = 64;

std::span<const std::byte> bytes_of(const MatrixD& matrix) {
  return std::as_bytes(std::span(matrix.data(), static_cast<std::size_t>(matrix.size())));
}

std::string key_of(const Problem& problem) {
  ByteWriter text;
  text.put_text(kVersion);
  for (const MatrixD* matrix : {&problem.q, &problem.k, &problem.v}) {
    text.put_signed(matrix->rows());
    text.put_signed(matrix->cols());
  }
  text.put_double(problem.sm_scale);
  text.put_unsigned(problem.is_causal);
  text.put_unsigned(static_cast<std::uint64_t>(problem.causal_align));
  text.put_unsigned(problem.mask.has_value());
  io::Sha256 digest;
  digest.update(std::as_bytes(std::span(text.bytes())));
  for (const MatrixD* matrix : {&problem.q, &problem.k, &problem.v}) digest.update(bytes_of(*matrix));
  if (problem.mask) digest.update(bytes_of(*problem.mask));
  return digest.finish();
}

std::string packed(const Output& output, std::string_view key) {
  ByteWriter writer;
  writer.put_text(kVersion);
  writer.put_text(key);
  writer.put_signed(output.o.rows());
  writer.put_signed(output.o.cols());
  for (Eigen::Index i = 0; i < output.o.size(); ++i) writer.put_double(output.o.data()[i]);
  for (const double lse : output.lse) writer.put_double(lse);
  return writer.bytes() + io::sha256(writer.bytes());
}

/// The output that a file's bytes hold, if they are whole and this problem's; a file may have got another's name.
std::optional<Output> unpacked(std::string_view bytes, const Problem& problem, std::string_view key) {
  if (bytes.size() < kDigestBytes) return std::nullopt;
  const std::string_view content = bytes.substr(0, bytes.size() - kDigestBytes);
  if (io::sha256(content) != bytes.substr(content.size())) return std::nullopt;
  ByteReader reader(content);
  if (reader.get_text() != kVersion || reader.get_text() != key) return std::nullopt;
  const std::int64_t rows = reader.get_signed(), columns = reader.get_signed();
  if (rows != problem.q.rows() || columns != problem.v.cols()) return std::nullopt;
  Output output{MatrixD(rows, columns), std::vector<double>(static_cast<std::size_t>(rows))};
  for (Eigen::Index i = 0; i < output.o.size(); ++i) output.o.data()[i] = reader.get_double();
  for (double& lse : output.lse) lse = reader.get_double();
  if (!reader.at_end()) return std::nullopt;
  return output;
}

std::optional<Output> load(const std::string& path, const Problem& problem, std::string_view key) {
  try {
    std::error_code absent;
    if (!fs::is_regular_file(path, absent)) return std::nullopt;
    const io::InputFile file(path);
    const std::vector<std::byte> bytes = file.read(0, file.size());
    return unpacked({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, problem, key);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Why the output was not kept; empty when it was. A cache that cannot be written is no cache, the result is not
/// touched.
std::string store(const std::string& path, const Output& output, std::string_view key) {
  try {
    std::error_code failed;
    const std::string folder = fs::path(path).parent_path().string();
    fs::create_directories(folder, failed);
    if (failed) return folder + ": " + failed.message();
    io::write_file(path, packed(output, key));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

ReferenceCache::ReferenceCache(std::string folder, std::int64_t least_work)
    : folder_(std::move(folder)), least_work_(least_work) {}

Output ReferenceCache::reference(const Problem& problem) const {
  const std::int64_t work = problem.q.rows() * problem.k.rows() * (problem.q.cols() + problem.v.cols());
  if (folder_.empty() || work < least_work_) return attention::reference_attention(problem);
  const std::string key = key_of(problem), path = (fs::path(folder_) / key).string();
  if (std::optional<Output> kept = load(path, problem, key)) {
    ++hits_;
    return *std::move(kept);
  }
  Output output = attention::reference_attention(problem);
  if (const std::string reason = store(path, output, key); !reason.empty()) {
    const std::lock_guard lock(mutex_);
    if (trouble_.empty()) trouble_ = reason;
  }
  return output;
}

std::string ReferenceCache::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

std::string ReferenceCache::default_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  // The XDG specification has relative paths ignored.
  if (const fs::path cache = variable("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "qattn/references";
  if (const fs::path home = variable("HOME"); home.is_absolute()) return home / ".cache/qattn/references";
  return "";
}

}  // namespace qattn::lab
