// The lock, the error stack and the boolean type.
#include "io/hdf5_handle.h"

#include "io/fail.h"

namespace qattn::io {
namespace {

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

/// Walked upward, the first entry is where the failure began: "file signature not found" rather than "unable to open".
/// The search for plugins tells only that there are none; what needed them stands above it.
herr_t keep_first(unsigned, const H5E_error2_t* entry, void* text) {
  std::string& reason = *static_cast<std::string*>(text);
  if (reason.empty() && entry->maj_num != H5E_PLUGIN && entry->desc != nullptr) reason = entry->desc;
  return 0;
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(library_mutex()) {
  // Handles own everything here. The library's clean-up at exit would only find what a full disk kept from closing, and
  // HDF5 1.10 crashes on that.
  static const herr_t no_clean_up = H5dont_atexit();
  static_cast<void>(no_clean_up);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::string hdf5_reason() {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &reason);
  H5Eclear2(H5E_DEFAULT);
  for (char& c : reason) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return reason.empty() ? "unknown HDF5 error" : reason;
}

void fail_hdf5(const std::string& where, const std::string& what) {
  fail(where, what + " (HDF5: " + hdf5_reason() + ")");
}

Hdf5Handle checked(hid_t id, Hdf5Handle::Closer closer, const std::string& where, const std::string& what) {
  if (id < 0) fail_hdf5(where, what);
  return Hdf5Handle(id, closer);
}

Hdf5Handle hdf5_boolean_type() {
  Hdf5Handle type(H5Tenum_create(H5T_NATIVE_INT8), H5Tclose);
  for (const std::int8_t value : {0, 1}) H5Tenum_insert(type.get(), value == 0 ? "FALSE" : "TRUE", &value);
  return type;
}

}  // namespace qattn::io
