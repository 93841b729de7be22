// What containers without groups (safetensors, npz) share: names that spell a path, and blocks of plain memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/array.h"

namespace qattn::io {

/// "layer_00/q" and "layer_00.q" are array "q" of group "layer_00": the last '/' or '.' parts them.
ArrayName split_name(const std::string& path);

/// The attributes in force at `group`, from keys that are spelled like arrays' names: "is_causal" holds everywhere,
/// "layer_00/is_causal" (or "layer_00.is_causal") inside of layer_00 and beats it there.
Attributes attributes_in_force(const Attributes& keys, const std::string& group);

/// Lets a `dtype` among `keys` say what unsigned integers and opaque elements of q, k, v, o and do are, as far as
/// their width fits it. Other arrays keep their own meaning.
void resolve_flat_format(ArrayInfo& info, const Attributes& keys, const ArrayName& array, const std::string& where);

/// Calls run(source, target, bytes) for every contiguous piece of a block: byte offsets in the whole array and in the
/// block.
void for_each_run(const ArrayInfo& info, const std::vector<std::int64_t>& start, const std::vector<std::int64_t>& count,
                  const std::function<void(std::size_t, std::size_t, std::size_t)>& run);

}  // namespace qattn::io
