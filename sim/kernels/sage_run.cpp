// A whole call: every head's operands, every block of queries, and the tensors that come back.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/fp_environment.h"
#include "base/parallel.h"
#include "kernels/codes.h"
#include "kernels/numbers.h"
#include "kernels/sage_attention.h"
#include "quant/smooth.h"
#include "scalar/span.h"

namespace qattn::kernels::sage {
namespace {

/// Where a head stands in the call.
struct Place {
  std::int64_t batch = 0, head = 0;
};

/// Floats as codes of `type` (f32, f16, bf16), rounded as the GPU's conversions do; NaN as it writes it.
std::vector<std::uint32_t> converted(std::span<const float> x, const format::Format& type) {
  std::vector<std::uint32_t> codes(x.size());
  to_bits(x, codes);
  if (type.bits != 32) {
    scalar::apply(scalar::cast_spec(type, scalar::Cast::rn), codes, codes);
    return codes;
  }
  for (std::uint32_t& code : codes) code = scalar::is_nan(code) ? scalar::kNaN : code;
  return codes;
}

MatrixCodes converted_matrix(const MatrixF& x, const format::Format& type) {
  const std::vector<std::uint32_t> codes = converted({x.data(), static_cast<std::size_t>(x.size())}, type);
  return Eigen::Map<const MatrixCodes>(codes.data(), x.rows(), x.cols());
}

/// x with zero rows and columns behind it.
template <class T>
Matrix<T> extended(const Matrix<T>& x, std::int64_t rows, std::int64_t columns) {
  Matrix<T> result = Matrix<T>::Zero(rows, columns);
  result.topLeftCorner(x.rows(), x.cols()) = x;
  return result;
}

/// One head of a [B, H, N, D] tensor, with zero channels behind it up to `channels`.
MatrixF head_of(const Tensor& tensor, Place place, std::int64_t channels) {
  const std::int64_t tokens = tensor.shape[2], depth = tensor.shape[3];
  const std::int64_t offset = (place.batch * tensor.shape[1] + place.head) * tokens * depth;
  return extended<float>(decode_matrix_float(tensor, offset, tokens, depth), tokens, channels);
}

class CallReplay {
 public:
  CallReplay(const Form& form, const Call& call, mma::Path path);
  Returned operator()();

 private:
  KvHead prepare_kv(Place place);
  mma::Operand prepare_fp8_v(Place place, KvHead& head);
  mma::Operand prepare_half_v(Place place, KvHead& head) const;
  QHead prepare_q(Place place);
  void correct_lse(Place place);
  void run_block(const QHead& q, const KvHead& kv, Place place, std::int64_t block);
  void run_heads(std::int64_t first, std::int64_t last);

  Tensor& make(const std::string& name, const format::Format& format, std::vector<std::int64_t> shape);
  void make_outputs();
  void make_quantized();
  void store(const std::string& name, std::int64_t offset, std::span<const float> values);
  void store_rows(const std::string& name, Place place, const MatrixCodes& codes);
  std::string quantized(std::string_view name) const;
  std::string quantized_v(std::string_view name) const {
    return fmt::format("quantized/{}/{}", form_.v_fp8->name, name);
  }
  std::int64_t blocks() const { return round_up(call_.q_tokens(), form_.tiling.q_block) / form_.tiling.q_block; }
  std::int64_t heads_at_once() const;

  const Form& form_;
  const Call& call_;
  mma::Path path_;
  const format::Format& type_;
  std::int64_t channels_;  ///< head_dim as the kernels have it
  std::int64_t group_;     ///< query heads of a KV head
  float sm_scale_;
  float gain_;  ///< c
  DotOrder order_;
  Returned returned_;
};

CallReplay::CallReplay(const Form& form, const Call& call, mma::Path path)
    : form_(form),
      call_(call),
      path_(path),
      type_(*call.q.format),
      channels_(call.head_dim() <= 64 ? 64 : 128),
      group_(call.q_heads() / call.kv_heads()),
      sm_scale_(static_cast<float>(call.sm_scale)),
      gain_(form.scales_q ? 1.0f : sm_scale_ * kLog2E),
      order_(form.correction_order(type_, call.batch() * call.q_heads(), call.q_tokens(), channels_)) {}

Tensor& CallReplay::make(const std::string& name, const format::Format& format, std::vector<std::int64_t> shape) {
  return returned_.tensors[name] = make_tensor(format, std::move(shape));
}

void CallReplay::store(const std::string& name, std::int64_t offset, std::span<const float> values) {
  Tensor& tensor = returned_.tensors.find(name)->second;
  store_codes(tensor, offset, converted(values, *tensor.format));
}

/// Rows of one head of a [B, H, N, D] tensor in the call's layout; V's are channels, [B, H, D, N].
void CallReplay::store_rows(const std::string& name, Place place, const MatrixCodes& codes) {
  Tensor& tensor = returned_.tensors.find(name)->second;
  const bool hnd = call_.layout == io::Layout::hnd;
  const std::int64_t heads = tensor.shape[hnd ? 1 : 2];
  for (std::int64_t row = 0; row < codes.rows(); ++row) {
    const std::int64_t at = hnd ? (place.batch * heads + place.head) * codes.rows() + row
                                : (place.batch * codes.rows() + row) * heads + place.head;
    store_codes(tensor, at * codes.cols(), {codes.row(row).data(), static_cast<std::size_t>(codes.cols())});
  }
}

/// The vector files' name of one of the INT8 quantizer's products; K without smoothing is none of theirs.
std::string CallReplay::quantized(std::string_view name) const {
  const bool unsmoothed = name.front() == 'k' && !form_.smooth_k;
  return fmt::format("quantized/{}{}/{}/{}", form_.grouping, unsmoothed ? "_unsmoothed" : "",
                     quant::name(form_.int8.granularity), name);
}

void CallReplay::make_outputs() {
  make("o", type_, {call_.batch(), call_.q_heads(), call_.q_tokens(), call_.head_dim()});
  make("lse", format::kFP32, {call_.batch(), call_.q_heads(), call_.q_tokens()});
  if (form_.smooth_k) make("k_mean", type_, {call_.batch(), call_.kv_heads(), 1, call_.head_dim()});
  make_quantized();
}

void CallReplay::make_quantized() {
  const std::int64_t batch = call_.batch(), q_heads = call_.q_heads(), kv_heads = call_.kv_heads();
  const auto shape = [&](std::int64_t heads, std::int64_t rows, std::int64_t columns) {
    if (call_.layout == io::Layout::hnd) return std::vector<std::int64_t>{batch, heads, rows, columns};
    return std::vector<std::int64_t>{batch, rows, heads, columns};
  };
  const auto groups = [&](quant::Operand operand, std::int64_t tokens, int block) {
    return quant::GroupMap({form_.int8.granularity, operand, form_.tiling, {}}, round_up(tokens, block), 1).groups();
  };
  make(quantized("q_int8"), format::kInt8, shape(q_heads, call_.q_tokens(), channels_));
  make(quantized("q_scale"), format::kFP32,
       {batch, q_heads, groups(quant::Operand::q, call_.q_tokens(), form_.tiling.q_block)});
  make(quantized("k_int8"), format::kInt8, shape(kv_heads, call_.kv_tokens(), channels_));
  make(quantized("k_scale"), format::kFP32,
       {batch, kv_heads, groups(quant::Operand::k, call_.kv_tokens(), form_.tiling.k_block)});
  if (!form_.v_fp8) return;
  make(quantized_v("v_fp8"), format::kE4M3, shape(kv_heads, channels_, round_up(call_.kv_tokens(), form_.v_padding)));
  make(quantized_v("v_scale"), format::kFP32, {batch, kv_heads, channels_});
  if (form_.v_fp8->smooth) make(quantized_v("vm"), format::kFP32, {batch, kv_heads, channels_});
}

/// V as FP8; only the channels that the output keeps are multiplied.
mma::Operand CallReplay::prepare_fp8_v(Place place, KvHead& head) {
  const Fp8Matrix v =
      quantize_fp8(head_of(call_.v, place, channels_), round_up(head.tokens, form_.v_padding), *form_.v_fp8);
  head.v_scale = v.scales;
  head.v_mean = v.means;
  head.v_mean.resize(v.scales.size());
  const std::int64_t at = (place.batch * call_.kv_heads() + place.head) * channels_;
  store_rows(quantized_v("v_fp8"), place, v.codes);
  store(quantized_v("v_scale"), at, v.scales);
  if (form_.v_fp8->smooth) store(quantized_v("vm"), at, v.means);
  return mma::Operand(*form_.pv, mma::Side::b, v.codes.topRows(call_.head_dim()));
}

mma::Operand CallReplay::prepare_half_v(Place place, KvHead& head) const {
  MatrixF v = head_of(call_.v, place, call_.head_dim());
  head.v_scale.assign(static_cast<std::size_t>(v.cols()), 1.0f);
  head.v_mean.assign(head.v_scale.size(), 0.0f);
  if (form_.centred_half_v) {
    quant::Smoothed smoothed = quant::smooth(v, {.block_rows = 0, .mean_format = &type_, .result_format = &type_});
    std::copy_n(smoothed.means.data(), head.v_mean.size(), head.v_mean.begin());
    v = std::move(smoothed.centred);
  }
  const MatrixF transposed = v.transpose();
  const std::int64_t tokens = round_up(head.tokens, form_.tiling.k_block);
  return mma::Operand(*form_.pv, mma::Side::b,
                      extended<std::uint32_t>(converted_matrix(transposed, format::kFP16), v.cols(), tokens));
}

KvHead CallReplay::prepare_kv(Place place) {
  KvHead head;
  head.tokens = call_.kv_tokens();
  MatrixF k = head_of(call_.k, place, channels_);
  const std::int64_t index = place.batch * call_.kv_heads() + place.head;
  if (form_.smooth_k) {
    const format::Format& kept = form_.int8.rounds_centred ? type_ : format::kFP32;
    quant::Smoothed smoothed = quant::smooth(k, {.block_rows = 0, .mean_format = &type_, .result_format = &kept});
    store("k_mean", index * call_.head_dim(), {smoothed.means.data(), static_cast<std::size_t>(call_.head_dim())});
    k = std::move(smoothed.centred);
  }
  head.k = quantize_int8(k, form_.int8, quant::Operand::k, form_.tiling);
  store_rows(quantized("k_int8"), place, head.k.codes);
  store(quantized("k_scale"), index * static_cast<std::int64_t>(head.k.scales.size()), head.k.scales);
  const std::int64_t tile = form_.tiling.k_block;
  const MatrixCodes codes = extended<std::uint32_t>(head.k.codes, round_up(head.tokens, tile), channels_);
  for (std::int64_t first = 0; first < codes.rows(); first += tile) {
    head.k_tiles.emplace_back(*form_.qk, mma::Side::b, codes.middleRows(first, tile));
  }
  head.v = form_.v_fp8 ? prepare_fp8_v(place, head) : prepare_half_v(place, head);
  return head;
}

QHead CallReplay::prepare_q(Place place) {
  MatrixF q = head_of(call_.q, place, channels_);
  if (form_.scales_q) {
    // The kernel is given the product of two doubles, rounded once.
    const auto factor = static_cast<float>(call_.sm_scale * 1.44269504);
    for (std::int64_t i = 0; i < q.size(); ++i) q.data()[i] *= factor;
  }
  QHead head{call_.q_tokens(), quantize_int8(q, form_.int8, quant::Operand::q, form_.tiling)};
  const std::int64_t index = place.batch * call_.q_heads() + place.head;
  store_rows(quantized("q_int8"), place, head.q.codes);
  store(quantized("q_scale"), index * static_cast<std::int64_t>(head.q.scales.size()), head.q.scales);
  return head;
}

void CallReplay::run_block(const QHead& q, const KvHead& kv, Place place, std::int64_t block) {
  const std::int64_t first = block * form_.tiling.q_block;
  BlockTrace trace;
  if (RowTrace* wanted = call_.trace; wanted != nullptr && wanted->batch == place.batch && wanted->head == place.head &&
                                      wanted->row / form_.tiling.q_block == block) {
    trace = {wanted->row - first, &wanted->stages};
  }
  const Block result = attend(form_, q, kv, block, call_.is_causal, gain_, type_, path_, trace);
  const std::int64_t row = (place.batch * call_.q_heads() + place.head) * call_.q_tokens() + first;
  store("o", row * call_.head_dim(), {result.o.data(), static_cast<std::size_t>(result.o.size())});
  // PyTorch divides by a number as it multiplies by its reciprocal.
  std::vector<float> lse = result.lse2;
  for (float& value : lse) value *= 1.0f / kLog2E;
  store("lse", row, lse);
}

void CallReplay::correct_lse(Place place) {
  const MatrixF q = head_of(call_.q, place, channels_);
  const Place kv{place.batch, place.head / group_};
  const Tensor& means = returned_.tensors.find("k_mean")->second;
  const MatrixF mean = head_of(means, kv, channels_);
  const std::vector<float> added = correction(type_, converted_matrix(q, type_), converted_matrix(mean, type_), order_,
                                              *form_.correction_instruction);
  Tensor& lse = returned_.tensors.find("lse")->second;
  std::int64_t at = (place.batch * call_.q_heads() + place.head) * call_.q_tokens();
  for (const float value : added) {
    const float before = std::bit_cast<float>(static_cast<std::uint32_t>(lse.code(at)));
    lse.set_code(at++, std::bit_cast<std::uint32_t>(before + value * sm_scale_));
  }
}

/// KV heads whose operands are in memory together: as few as give every thread some blocks.
std::int64_t CallReplay::heads_at_once() const {
  const std::int64_t cores = call_.threads > 0 ? call_.threads : std::max(1u, std::thread::hardware_concurrency());
  const std::int64_t tasks = group_ * blocks();
  return ceil_div(2 * cores, tasks);
}

/// KV heads [first, last), counted through the batch.
void CallReplay::run_heads(std::int64_t first, std::int64_t last) {
  const std::int64_t count = last - first;
  std::vector<KvHead> kv(static_cast<std::size_t>(count));
  std::vector<QHead> q(static_cast<std::size_t>(count * group_));
  const auto kv_place = [&](std::int64_t i) {
    return Place{(first + i) / call_.kv_heads(), (first + i) % call_.kv_heads()};
  };
  const auto q_place = [&](std::int64_t i) {
    const Place place = kv_place(i / group_);
    return Place{place.batch, place.head * group_ + i % group_};
  };
  parallel_for(count, call_.threads,
               [&](std::int64_t i) { kv[static_cast<std::size_t>(i)] = prepare_kv(kv_place(i)); });
  parallel_for(count * group_, call_.threads,
               [&](std::int64_t i) { q[static_cast<std::size_t>(i)] = prepare_q(q_place(i)); });
  const std::int64_t per_head = blocks();
  parallel_for(count * group_ * per_head, call_.threads, [&](std::int64_t i) {
    const std::int64_t head = i / per_head;
    run_block(q[static_cast<std::size_t>(head)], kv[static_cast<std::size_t>(head / group_)], q_place(head),
              i % per_head);
  });
  if (!form_.smooth_k) return;
  parallel_for(count * group_, call_.threads, [&](std::int64_t i) { correct_lse(q_place(i)); });
}

Returned CallReplay::operator()() {
  make_outputs();
  const std::int64_t heads = call_.batch() * call_.kv_heads(), step = heads_at_once();
  for (std::int64_t first = 0; first < heads; first += step) run_heads(first, std::min(heads, first + step));
  returned_.predicted = !form_.prediction.empty();
  returned_.evidence = returned_.predicted ? "predicted: " + form_.prediction : "measured here (H200)";
  if (!returned_.predicted && form_.smooth_k && !order_.recorded) {
    returned_.predicted = true;
    returned_.evidence = "predicted: lse, whose matrix product PyTorch gives to an unknown cuBLAS kernel at this shape";
  }
  return std::move(returned_);
}

}  // namespace

void check(const Call& call) {
  const auto fail = [](const std::string& what) { throw Error(ErrorKind::input, "SageAttention: " + what); };
  for (const Tensor* tensor : {&call.q, &call.k, &call.v}) {
    if (tensor->shape.size() != 4 || tensor->elements() == 0) fail("q, k and v must be [B, H, N, D] and not empty");
    if (tensor->format != call.q.format) fail("q, k and v must have one dtype");
  }
  if (call.q.format != &format::kFP16 && call.q.format != &format::kBF16) {
    fail(fmt::format("q, k and v must be float16 or bfloat16, not {}", call.q.format->name));
  }
  if (call.k.shape != call.v.shape || call.k.shape[0] != call.batch() || call.k.shape[3] != call.head_dim()) {
    fail("k and v must have one shape, and q's batch and head_dim");
  }
  if (call.q_heads() % call.kv_heads() != 0) fail("the query heads are no multiple of the KV heads");
  if (call.head_dim() > 128) fail(fmt::format("head_dim is {}; the kernels take at most 128", call.head_dim()));
  if (call.is_causal && call.causal_align == attention::CausalAlign::bottom_right &&
      call.q_tokens() != call.kv_tokens()) {
    fail("the kernels' causal mask starts at the top left");
  }
}

Returned run(const Form& form, const Call& call, mma::Path path) { return CallReplay(form, call, path)(); }

}  // namespace qattn::kernels::sage
