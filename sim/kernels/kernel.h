// The published attention kernels: what each is called, what it is given, and the replay that returns its bits.
//
// A kernel is one entry of kernels(); `qattn check` and the tests find it by the name that its
// library gave it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/problem.h"
#include "io/attributes.h"
#include "io/dump.h"
#include "tensor/tensor.h"

namespace qattn::kernels {

/// One quantity on the way to a row's output, in the kernel's own units and order.
struct Stage {
  std::string name;           ///< "tile 0 scores", "tile 0 P", "row sum", ...
  std::vector<float> values;  ///< one a key of the tile, one a channel, or one
};

/// What a kernel computed for one row of its output; the kernel fills `stages` in the order of its work.
struct RowTrace {
  std::int64_t batch = 0;
  std::int64_t head = 0;  ///< query head
  std::int64_t row = 0;   ///< query token
  std::vector<Stage> stages;
};

/// One call, as the kernel's library gets it. Tensors hold raw codes and are [B, H, N, D], whatever `layout` says: it
/// tells how the caller had them in memory, which some libraries' own products notice.
struct Call {
  Tensor q;                   ///< [B, Hq, Nq, D]
  Tensor k;                   ///< [B, Hkv, Nk, D]; Hq is a multiple of Hkv
  Tensor v;                   ///< [B, Hkv, Nk, D]
  std::optional<Tensor> d_o;  ///< upstream gradient [B, Hq, Nq, D]; kernels with a backward pass return dq, dk, dv then
  std::vector<float> q_descale, k_descale, v_descale;  ///< [B * Hkv] each; empty: all 1
  io::Layout layout = io::Layout::hnd;
  bool is_causal = false;
  std::optional<attention::CausalAlign> causal_align;  ///< empty: the library's own
  double sm_scale = 0;
  int sm_count = 132;         ///< multiprocessors of the card: split heuristics ask for it
  std::string arch = "sm90";  ///< whose tensor core computes: "sm80", "sm89", "sm90", "sm100", "sm120"
  /// The kernel's keyword arguments by their own names (`qk_quant_gran`, `pv_accum_dtype`, `smooth_k`,
  /// `use_qat_qkv_backward`, ...); one that is absent has the library's default, others are ignored.
  io::Attributes arguments;
  int threads = 0;            ///< 0: as many as there are cores; decides nothing but the time
  RowTrace* trace = nullptr;  ///< the row whose stages are wanted, if any; changes no result

  std::int64_t batch() const { return q.shape[0]; }
  std::int64_t q_heads() const { return q.shape[1]; }
  std::int64_t kv_heads() const { return k.shape[1]; }
  std::int64_t q_tokens() const { return q.shape[2]; }
  std::int64_t kv_tokens() const { return k.shape[2]; }
  std::int64_t head_dim() const { return q.shape[3]; }
};

/// A returned tensor whose bits the kernel's own code does not fix: f32 terms are added by atomic operations, in
/// whatever order the blocks finish. `tensors` holds what one order gives; another run of the GPU may give another
/// one's bits.
struct OrderFree {
  /// Whether some order that was tried gives `code` for element `index` (row-major). Safe to call from several threads.
  std::function<bool(std::int64_t index, std::uint64_t code)> reachable;
  std::int64_t fixed = 0;  ///< elements to which at most two terms are added, so that no order matters
  std::string orders;      ///< what was tried, for people: "all 6 orders of 3 key blocks"
};

/// What a kernel returns, and how much of that has been compared with a GPU.
struct Returned {
  /// o [B, Hq, Nq, D]; lse [B, Hq, Nq] fp32 where the kernel has one; dq, dk, dv; for SageAttention also the quantized
  /// intermediates under the names of the file formats ("quantized/sm90/per_thread/q_int8").
  std::map<std::string, Tensor, std::less<>> tensors;
  std::map<std::string, OrderFree, std::less<>> order_free;  ///< by the tensor's name
  bool predicted = false;                                    ///< outside what was compared with a GPU
  std::string evidence;                                      ///< "measured here (H200)", or "predicted: " and why
};

/// One kernel of a library.
struct Kernel {
  std::string_view name;     ///< "sageattn_qk_int8_pv_fp8_cuda_sm90", "aten._scaled_dot_product_flash_attention", ...
  std::string_view library;  ///< library and version that the replay follows
  std::string_view help;     ///< one line for people
  Returned (*run)(const Call& call);
  /// The keyword arguments that it looks at, by name, with a space between: "qk_quant_gran smooth_k".
  std::string_view arguments = "";
};

/// Every kernel, in the order in which it is listed.
std::span<const Kernel> kernels();

/// The kernel called `name`, or nullptr.
const Kernel* find_kernel_or_null(std::string_view name);
/// The same; throws Error(usage) that lists the names.
const Kernel& find_kernel(std::string_view name);

}  // namespace qattn::kernels
