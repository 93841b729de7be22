// Reads one head of an attention dump through the HDF5 C API; FP16 codes are decoded here, not by HDF5.
#pragma once

#include <hdf5.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "matrix.h"
#include "number_set.h"

namespace oracle {

struct Head {
  Matrix q, k, v;
  double sm_scale = 0;
  bool causal = false;
};

/// The codes of a dataset [batch, heads, tokens, head_dim] of 2-byte floats.
struct Codes {
  std::vector<hsize_t> shape;
  std::vector<std::uint16_t> codes;
};

inline Codes read_codes(hid_t group, const std::string& name) {
  const hid_t dataset = H5Dopen2(group, name.c_str(), H5P_DEFAULT);
  if (dataset < 0) throw std::runtime_error("no dataset " + name);
  const hid_t space = H5Dget_space(dataset);
  const hid_t type = H5Dget_type(dataset);
  Codes result;
  result.shape.resize(4);
  const bool fits = H5Sget_simple_extent_ndims(space) == 4 && H5Tget_size(type) == 2 &&
                    H5Tget_class(type) == H5T_FLOAT && H5Tget_order(type) == H5T_ORDER_LE;
  if (!fits) throw std::runtime_error(name + " is not [batch, heads, tokens, head_dim] of FP16");
  H5Sget_simple_extent_dims(space, result.shape.data(), nullptr);
  result.codes.resize(result.shape[0] * result.shape[1] * result.shape[2] * result.shape[3]);
  const herr_t status = H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, result.codes.data());
  H5Tclose(type);
  H5Sclose(space);
  H5Dclose(dataset);
  if (status < 0) throw std::runtime_error("cannot read " + name);
  return result;
}

inline Matrix head_of(const Codes& codes, int batch, int head) {
  const int tokens = static_cast<int>(codes.shape[2]);
  const int channels = static_cast<int>(codes.shape[3]);
  Matrix m(tokens, channels);
  const std::size_t first =
      (static_cast<std::size_t>(batch) * codes.shape[1] + static_cast<std::size_t>(head)) * m.elements.size();
  for (std::size_t i = 0; i < m.elements.size(); ++i) {
    const std::uint16_t code = codes.codes.at(first + i);
    const double magnitude = fp16().magnitudes.at(code & 0x7FFFu);  // throws for Inf and NaN
    m.elements[i] = (code & 0x8000u) != 0 ? -magnitude : magnitude;
  }
  return m;
}

/// An attribute of the call's group, else of the file; false when neither has it.
inline bool read_attribute(hid_t file, hid_t group, const char* name, hid_t memory_type, void* value) {
  for (const hid_t owner : {group, file}) {
    if (H5Aexists(owner, name) <= 0) continue;
    const hid_t attribute = H5Aopen(owner, name, H5P_DEFAULT);
    const hid_t stored = H5Aget_type(attribute);
    const herr_t status = H5Aread(attribute, memory_type < 0 ? stored : memory_type, value);
    H5Tclose(stored);
    H5Aclose(attribute);
    if (status < 0) throw std::runtime_error(std::string("cannot read attribute ") + name);
    return true;
  }
  return false;
}

inline int heads_of_call(const std::string& path, const std::string& call) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t group = file < 0 ? -1 : H5Gopen2(file, call.c_str(), H5P_DEFAULT);
  if (group < 0) throw std::runtime_error("no call " + call + " in " + path);
  const Codes q = read_codes(group, "q");
  H5Gclose(group);
  H5Fclose(file);
  return static_cast<int>(q.shape[1]);
}

/// Query head `head` with the key-value head that it shares with its neighbours.
inline Head read_head(const std::string& path, const std::string& call, int batch, int head) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t group = file < 0 ? -1 : H5Gopen2(file, call.c_str(), H5P_DEFAULT);
  if (group < 0) throw std::runtime_error("no call " + call + " in " + path);
  const Codes q = read_codes(group, "q");
  const Codes k = read_codes(group, "k");
  const Codes v = read_codes(group, "v");
  const int sharing = static_cast<int>(q.shape[1] / k.shape[1]);
  Head result{head_of(q, batch, head), head_of(k, batch, head / sharing), head_of(v, batch, head / sharing)};
  if (!read_attribute(file, group, "sm_scale", H5T_NATIVE_DOUBLE, &result.sm_scale))
    result.sm_scale = 1 / std::sqrt(static_cast<double>(result.q.columns));
  std::int8_t causal = 0;  // h5py's boolean: a one-byte enumeration, read as it is stored
  read_attribute(file, group, "is_causal", -1, &causal);
  result.causal = causal != 0;
  H5Gclose(group);
  H5Fclose(file);
  return result;
}

}  // namespace oracle
