// What dumps and kernel vectors have in common: the shapes and the attributes of an attention call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/attributes.h"
#include "io/dump.h"

namespace qattn::io {

/// Fills sizes, layout and has_batch of `call` from the shapes of q, k and v. Throws Error(input) that starts with
/// `where` when they disagree.
void set_shapes(AttentionCall& call, const std::vector<std::int64_t>& q, const std::vector<std::int64_t>& k,
                const std::vector<std::int64_t>& v, const std::string& where);

/// Fills layout, is_causal, causal_align from the attributes in force.
void set_layout(AttentionCall& call, const Attributes& attributes, const std::string& where);
/// Fills head_dim_original and sm_scale; the shapes must be set.
void set_scale(AttentionCall& call, const Attributes& attributes, const std::string& where);

/// The shape a tensor of `heads` heads and `tokens` tokens has in the call's layout.
std::vector<std::int64_t> shape_in_layout(const AttentionCall& call, std::int64_t heads, std::int64_t tokens);

}  // namespace qattn::io
