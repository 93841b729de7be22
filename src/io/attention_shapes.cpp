// The checks that every attention call of every file passes.
#include "io/attention_shapes.h"

#include <cmath>

#include "base/fp_environment.h"
#include "io/fail.h"

namespace qattn::io {
namespace {

struct Sizes {
  std::int64_t batch, heads, tokens, head_dim;
};

Sizes sizes_of(const std::vector<std::int64_t>& shape, Layout layout, const std::string& where) {
  if (shape.size() != 3 && shape.size() != 4) {
    fail(where,
         "has shape " + to_text(shape) + "; it must be [batch, heads, tokens, head_dim] in the order of 'layout'");
  }
  for (const std::int64_t size : shape) {
    if (size == 0) fail(where, "has shape " + to_text(shape) + ": nothing to attend; no size may be zero");
  }
  const std::size_t first = shape.size() - 3;
  const std::int64_t batch = first == 1 ? shape[0] : 1;
  if (layout == Layout::hnd) return {batch, shape[first], shape[first + 1], shape[first + 2]};
  return {batch, shape[first + 1], shape[first], shape[first + 2]};
}

}  // namespace

void set_shapes(AttentionCall& call, const std::vector<std::int64_t>& q, const std::vector<std::int64_t>& k,
                const std::vector<std::int64_t>& v, const std::string& where) {
  const Sizes q_sizes = sizes_of(q, call.layout, where + "/q");
  const Sizes k_sizes = sizes_of(k, call.layout, where + "/k");
  const std::string shapes = "q " + to_text(q) + ", k " + to_text(k) + ", v " + to_text(v);
  if (k != v) fail(where, "k and v must have the same shape; here " + shapes);
  if (q.size() != k.size() || q_sizes.batch != k_sizes.batch) fail(where, "q and k differ in batch; here " + shapes);
  if (q_sizes.head_dim != k_sizes.head_dim) fail(where, "q and k differ in head_dim; here " + shapes);
  if (q_sizes.heads % k_sizes.heads != 0) {
    fail(where, "q has " + std::to_string(q_sizes.heads) + " heads, no multiple of k's " +
                    std::to_string(k_sizes.heads) + "; here " + shapes + "; is 'layout' right?");
  }
  call.has_batch = q.size() == 4;
  call.batch = q_sizes.batch;
  call.q_heads = q_sizes.heads;
  call.kv_heads = k_sizes.heads;
  call.q_tokens = q_sizes.tokens;
  call.kv_tokens = k_sizes.tokens;
  call.head_dim = q_sizes.head_dim;
}

void set_layout(AttentionCall& call, const Attributes& attributes, const std::string& where) {
  const std::string layout = find_text(attributes, "layout", where).value_or("HND");
  if (layout != "HND" && layout != "NHD") fail(where, "unknown layout '" + layout + "'; known are: HND NHD");
  call.layout = layout == "HND" ? Layout::hnd : Layout::nhd;
  call.is_causal = find_bool(attributes, "is_causal", where).value_or(false);
  const std::string align = find_text(attributes, "causal_align", where).value_or("top_left");
  if (align != "top_left" && align != "bottom_right") {
    fail(where, "unknown causal_align '" + align + "'; known are: top_left bottom_right");
  }
  call.causal_align = align == "top_left" ? CausalAlign::top_left : CausalAlign::bottom_right;
}

void set_scale(AttentionCall& call, const Attributes& attributes, const std::string& where) {
  const FpEnvironment environment;
  call.head_dim_original = find_integer(attributes, "head_dim_original", where).value_or(call.head_dim);
  if (call.head_dim_original < 1 || call.head_dim_original > call.head_dim) {
    fail(where, "head_dim_original is " + std::to_string(call.head_dim_original) + ", but head_dim is " +
                    std::to_string(call.head_dim));
  }
  call.sm_scale =
      find_number(attributes, "sm_scale", where).value_or(1.0 / std::sqrt(static_cast<double>(call.head_dim_original)));
  if (!(std::isfinite(call.sm_scale) && call.sm_scale > 0)) fail(where, "sm_scale must be a positive finite number");
}

std::vector<std::int64_t> shape_in_layout(const AttentionCall& call, std::int64_t heads, std::int64_t tokens) {
  std::vector<std::int64_t> shape = {heads, tokens, call.head_dim};
  if (call.layout == Layout::nhd) std::swap(shape[0], shape[1]);
  if (call.has_batch) shape.insert(shape.begin(), call.batch);
  return shape;
}

}  // namespace qattn::io
