// Names, attributes and blocks of flat containers.
#include "io/flat_file.h"

#include <algorithm>

#include "io/fail.h"

namespace qattn::io {
namespace {

bool holds_inside(const std::string& outer, const std::string& group) {
  if (outer.empty() || outer == group) return true;
  return group.size() > outer.size() && group.compare(0, outer.size(), outer) == 0 &&
         (group[outer.size()] == '/' || group[outer.size()] == '.');
}

bool holds_codes(const std::string& name) {
  return name == "q" || name == "k" || name == "v" || name == "o" || name == "do";
}

}  // namespace

ArrayName split_name(const std::string& path) {
  const std::size_t separator = path.find_last_of("/.");
  if (separator == std::string::npos) return {path, "", path};
  return {path, path.substr(0, separator), path.substr(separator + 1)};
}

Attributes attributes_in_force(const Attributes& keys, const std::string& group) {
  std::map<std::string, std::size_t> nearest;  // name to the length of the group that sets it
  Attributes result;
  for (const auto& [key, value] : keys) {
    const ArrayName split = split_name(key);
    if (!holds_inside(split.group, group)) continue;
    const auto found = nearest.find(split.name);
    if (found != nearest.end() && found->second > split.group.size()) continue;
    nearest[split.name] = split.group.size();
    result.insert_or_assign(split.name, value);
  }
  return result;
}

void resolve_flat_format(ArrayInfo& info, const Attributes& keys, const ArrayName& array, const std::string& where) {
  const auto dtype = find_text(attributes_in_force(keys, array.path), "dtype", where);
  const bool unnamed = info.storage == Storage::opaque || (info.storage == Storage::integer && !info.is_signed);
  const bool applies =
      dtype && unnamed && holds_codes(array.name) && info.element_bytes == code_bytes(format_of_dtype(*dtype, where));
  resolve_format(info, applies ? dtype : std::nullopt, where);
}

void for_each_run(const ArrayInfo& info, const std::vector<std::int64_t>& start, const std::vector<std::int64_t>& count,
                  const std::function<void(std::size_t, std::size_t, std::size_t)>& run) {
  if (std::find(count.begin(), count.end(), 0) != count.end()) return;
  // Dimensions from `split` on are taken whole (the one before in part) and form one contiguous run.
  std::size_t split = count.size();
  while (split > 0 && count[split - 1] == info.shape[split - 1]) --split;
  if (split > 0) --split;
  std::vector<std::int64_t> stride(count.size(), 1);
  for (std::size_t i = count.size(); i-- > 1;) stride[i - 1] = stride[i] * info.shape[i];
  std::int64_t run_elements = 1;
  for (std::size_t i = split; i < count.size(); ++i) run_elements *= count[i];
  std::int64_t runs = 1;
  for (std::size_t i = 0; i < split; ++i) runs *= count[i];
  const std::size_t run_bytes = static_cast<std::size_t>(run_elements) * info.element_bytes;
  for (std::int64_t r = 0; r < runs; ++r) {
    std::int64_t source = split < count.size() ? start[split] * stride[split] : 0;
    std::int64_t rest = r;
    for (std::size_t i = split; i-- > 0;) {
      source += (start[i] + rest % count[i]) * stride[i];
      rest /= count[i];
    }
    run(static_cast<std::size_t>(source) * info.element_bytes, static_cast<std::size_t>(r) * run_bytes, run_bytes);
  }
}

}  // namespace qattn::io
