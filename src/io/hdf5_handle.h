// What the HDF5 reader and writer share: owned identifiers, the library's lock, its errors in one line.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "io/attributes.h"

namespace qattn::io {

/// Held around every call of the library: Debian's serial HDF5 is not thread-safe. Silences its printing of errors.
class Hdf5Lock {
 public:
  Hdf5Lock();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

/// Owns an identifier and closes it with the function that fits. Hold an Hdf5Lock when it dies.
class Hdf5Handle {
 public:
  using Closer = herr_t (*)(hid_t);
  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), closer_(other.closer_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(closer_, other.closer_);
    return *this;
  }
  ~Hdf5Handle() { close(); }

  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Forgets the identifier without closing it.
  void abandon() { id_ = -1; }
  /// Closes now; false when the library reports a failure.
  bool close() { return id_ < 0 || closer_(std::exchange(id_, -1)) >= 0; }

 private:
  hid_t id_ = -1;
  Closer closer_ = nullptr;
};

/// The innermost reason on the library's error stack, or "unknown HDF5 error"; clears the stack.
std::string hdf5_reason();

/// Throws Error(input) "<where>: <what> (HDF5: <reason>)".
[[noreturn]] void fail_hdf5(const std::string& where, const std::string& what);

/// The handle, or fail_hdf5().
Hdf5Handle checked(hid_t id, Hdf5Handle::Closer closer, const std::string& where, const std::string& what);

/// h5py's boolean: an enumeration of int8 with FALSE and TRUE.
Hdf5Handle hdf5_boolean_type();

/// "a/b" of "a/b/c", "" of "a".
inline std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

}  // namespace qattn::io
