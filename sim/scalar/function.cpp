#include "scalar/function.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "base/error.h"
#include "format/encode.h"
#include "scalar/cast.h"
#include "scalar/ptx.h"
#include "scalar/span.h"

namespace qattn::scalar {
namespace {

using format::Format;
using format::kBF16, format::kE2M1, format::kE2M3, format::kE3M2, format::kE4M3, format::kE5M2, format::kE8M0;
using format::kFP16, format::kFP32, format::kInt8, format::kTF32;
using Output = std::span<std::uint32_t>;

template <SimdFunction function>
void simd(Codes32 x, Output y) {
  apply(function, x, y);
}

template <auto plain>
void each(Codes32 x, Output y) {
  if (x.size() != y.size()) throw Error(ErrorKind::internal, "scalar: input and output spans differ in length");
  std::transform(x.begin(), x.end(), y.begin(), plain);
}

// --- functions of binary32

constexpr Function ptx(std::string_view name, std::uint32_t (*plain)(std::uint32_t), void (*span)(Codes32, Output),
                       Reference reference, Mufu mufu, std::uint32_t (*argument)(std::uint32_t) = nullptr) {
  return {name, Build::any, &kFP32, &kFP32, plain, span, reference, Evidence::measured, mufu, argument};
}

constexpr Function cuda_function(std::string_view name, Build build, std::uint32_t (*plain)(std::uint32_t),
                                 void (*span)(Codes32, Output), Reference reference, Mufu mufu = Mufu::none,
                                 std::uint32_t (*argument)(std::uint32_t) = nullptr) {
  return {name, build, &kFP32, &kFP32, plain, span, reference, Evidence::measured, mufu, argument};
}

// --- casts from binary32

template <CastSpec spec>
std::uint32_t plain_cast(std::uint32_t x) {
  return cast(spec, x);
}
template <CastSpec spec>
void span_cast(Codes32 x, Output y) {
  apply(spec, x, y);
}
template <CastSpec spec>
constexpr Function from_f32(std::string_view name, const Format& to, Evidence evidence = Evidence::ptx_manual) {
  const Reference reference = spec.relu ? Reference::relu : Reference::identity;
  return {name, Build::any, &kFP32, &to, plain_cast<spec>, span_cast<spec>, reference, evidence};
}

template <IntegerRounding rounding>
std::uint32_t plain_s8(std::uint32_t x) {
  return cast_s8(rounding, x);
}
template <IntegerRounding rounding>
void span_s8(Codes32 x, Output y) {
  apply(rounding, x, y);
}
template <IntegerRounding rounding>
constexpr Function to_s8(std::string_view name, Evidence evidence) {
  return {name, Build::any, &kFP32, &kInt8, plain_s8<rounding>, span_s8<rounding>, Reference::identity, evidence};
}

template <bool round_up, bool satfinite>
std::uint32_t plain_ue8m0(std::uint32_t x) {
  return cast_ue8m0(round_up, satfinite, x);
}
template <bool round_up, bool satfinite>
void span_ue8m0(Codes32 x, Output y) {
  apply_ue8m0(round_up, satfinite, x, y);
}

// --- casts from narrower formats: at most 2^16 inputs, so a plain loop serves as the span form

/// The binary32 code of a narrow code, exact; any NaN gives 0x7FFFFFFF.
template <const Format& from>
std::uint32_t widen(std::uint32_t code) {
  const auto bits = std::bit_cast<std::uint32_t>(format::decode_float(from, code));
  return is_nan(bits) ? kNaN : bits;
}

/// cvt.f32.bf16 is a shift: a NaN keeps its sign and payload.
std::uint32_t shift_bf16(std::uint32_t code) { return code << 16; }

/// `then` of a narrow code, widened first.
template <const Format& from, std::uint32_t (*then)(std::uint32_t)>
std::uint32_t widen_then(std::uint32_t code) {
  return then(widen<from>(code));
}

template <const Format& from, std::uint32_t (*then)(std::uint32_t)>
constexpr Function narrow(std::string_view name, const Format& to, Reference reference = Reference::identity,
                          Evidence evidence = Evidence::ptx_manual) {
  return {name, Build::any, &from, &to, widen_then<from, then>, each<widen_then<from, then>>, reference, evidence};
}

constexpr std::string_view kMufu16Note = "the binary32 result, cut to 16 bits; what is too large becomes Inf";

/// A 16-bit form of a MUFU function: the binary32 result of the widened input, cut.
template <const Format& from, std::uint32_t (*then)(std::uint32_t)>
constexpr Function mufu16(std::string_view name, Reference reference, Mufu mufu) {
  Function function = narrow<from, then>(name, from, reference, Evidence::measured);
  function.mufu = mufu;
  function.argument = widen<from>;
  function.note = kMufu16Note;
  return function;
}

template <CastSpec spec>
std::uint32_t ex2_then_cast(std::uint32_t x) {
  return cast(spec, mufu_ex2(x));
}
template <CastSpec spec>
std::uint32_t tanh_then_cast(std::uint32_t x) {
  return cast(spec, mufu_tanh(x));
}
std::uint32_t keep(std::uint32_t x) { return x; }

/// A cut to `to` that overflows to Inf.
constexpr CastSpec cut_spec(const Format& to) {
  CastSpec spec = cast_spec(to, Cast::rz);
  spec.overflow = spec.infinite;
  return spec;
}

constexpr CastSpec kToFP16 = cast_spec(kFP16, Cast::rn);
constexpr CastSpec kToBF16 = cast_spec(kBF16, Cast::rn);
constexpr CastSpec kToFP16Relu = cast_spec(kFP16, Cast::rn, Relu::yes);
constexpr CastSpec kToE4M3 = cast_spec(kE4M3, Cast::rn_satfinite);
constexpr CastSpec kToE5M2 = cast_spec(kE5M2, Cast::rn_satfinite);
constexpr CastSpec kToE4M3Relu = cast_spec(kE4M3, Cast::rn_satfinite, Relu::yes);
constexpr CastSpec kToE5M2Relu = cast_spec(kE5M2, Cast::rn_satfinite, Relu::yes);

constexpr std::string_view kSm100Note = "sm_100 and later";
constexpr std::string_view kFa4Note =
    "FlashAttention-4 (arXiv 2603.05451; flash_attn/cute/utils.py, degree 3); its contract ends at x = 127";

constexpr Function with_note(Function function, std::string_view note) {
  function.note = note;
  return function;
}

/// A cast into TF32, whose result stands in a 32-bit register.
constexpr Function in_register(Function function) {
  function.output = &kFP32;
  function.rounded_to = &kTF32;
  return function;
}

using enum Mufu;
using S = SimdFunction;

constexpr Function kFunctions[] = {
    // MUFU and the code that ptxas emits around it
    ptx("ex2.approx.ftz.f32", mufu_ex2, simd<S::mufu_ex2>, Reference::exp2, ex2),
    ptx("ex2.approx.f32", ex2_approx, simd<S::ex2_approx>, Reference::exp2, ex2, ex2_approx_argument),
    mufu16<kFP16, ex2_then_cast<cut_spec(kFP16)>>("ex2.approx.f16", Reference::exp2, ex2),
    mufu16<kFP16, ex2_then_cast<cut_spec(kFP16)>>("ex2.approx.f16x2", Reference::exp2, ex2),
    mufu16<kBF16, ex2_then_cast<cut_spec(kBF16)>>("ex2.approx.ftz.bf16", Reference::exp2, ex2),
    mufu16<kBF16, ex2_then_cast<cut_spec(kBF16)>>("ex2.approx.ftz.bf16x2", Reference::exp2, ex2),
    ptx("rcp.approx.ftz.f32", mufu_rcp, simd<S::mufu_rcp>, Reference::reciprocal, rcp),
    ptx("rcp.approx.f32", rcp_approx, simd<S::rcp_approx>, Reference::reciprocal, rcp, rcp_approx_argument),
    ptx("rcp.rn.f32", rcp_rn, simd<S::rcp_rn>, Reference::reciprocal, none),
    ptx("lg2.approx.ftz.f32", mufu_lg2, simd<S::mufu_lg2>, Reference::log2, lg2),
    ptx("lg2.approx.f32", lg2_approx, simd<S::lg2_approx>, Reference::log2, lg2, lift_subnormal_argument),
    ptx("rsqrt.approx.ftz.f32", mufu_rsqrt, simd<S::mufu_rsqrt>, Reference::rsqrt, rsqrt),
    ptx("rsqrt.approx.f32", rsqrt_approx, simd<S::rsqrt_approx>, Reference::rsqrt, rsqrt, lift_subnormal_argument),
    ptx("sqrt.approx.ftz.f32", mufu_sqrt, simd<S::mufu_sqrt>, Reference::sqrt, sqrt),
    ptx("sqrt.approx.f32", sqrt_approx, simd<S::sqrt_approx>, Reference::sqrt, sqrt, lift_subnormal_argument),
    ptx("tanh.approx.f32", mufu_tanh, simd<S::mufu_tanh>, Reference::tanh, tanh),
    mufu16<kFP16, tanh_then_cast<cut_spec(kFP16)>>("tanh.approx.f16", Reference::tanh, tanh),
    mufu16<kFP16, tanh_then_cast<cut_spec(kFP16)>>("tanh.approx.f16x2", Reference::tanh, tanh),
    mufu16<kBF16, tanh_then_cast<cut_spec(kBF16)>>("tanh.approx.bf16", Reference::tanh, tanh),
    mufu16<kBF16, tanh_then_cast<cut_spec(kBF16)>>("tanh.approx.bf16x2", Reference::tanh, tanh),

    // CUDA's functions, by build
    cuda_function("exp2f", Build::plain, ex2_approx, simd<S::ex2_approx>, Reference::exp2, ex2, ex2_approx_argument),
    cuda_function("exp2f", Build::fast_math, mufu_ex2, simd<S::mufu_ex2>, Reference::exp2, ex2),
    cuda_function("expf", Build::plain, cuda::expf, simd<S::cuda_expf>, Reference::exp, ex2, expf_argument),
    cuda_function("expf", Build::fast_math, cuda_fast::expf, simd<S::fast_math_expf>, Reference::exp, ex2,
                  fast_expf_argument),
    cuda_function("__expf", Build::plain, cuda::fast_expf, simd<S::cuda_fast_expf>, Reference::exp, ex2,
                  fast_expf_argument),
    cuda_function("__expf", Build::fast_math, cuda_fast::expf, simd<S::fast_math_expf>, Reference::exp, ex2,
                  fast_expf_argument),
    cuda_function("logf", Build::plain, cuda::logf, simd<S::cuda_logf>, Reference::log),
    cuda_function("logf", Build::fast_math, cuda_fast::logf, simd<S::fast_math_logf>, Reference::log, lg2),
    cuda_function("log2f", Build::plain, cuda::log2f, simd<S::cuda_log2f>, Reference::log2),
    cuda_function("log2f", Build::fast_math, mufu_lg2, simd<S::mufu_lg2>, Reference::log2, lg2),
    cuda_function("tanhf", Build::plain, cuda::tanhf, simd<S::cuda_tanhf>, Reference::tanh),
    cuda_function("tanhf", Build::fast_math, mufu_tanh, simd<S::mufu_tanh>, Reference::tanh, tanh),
    {"fa4-poly", Build::any, &kFP32, &kFP32, ex2_fa4_poly, simd<S::ex2_fa4_poly>, Reference::exp2, Evidence::published,
     none, nullptr, kFa4Note},

    // casts from f32
    from_f32<kToFP16>("cvt.rn.f16.f32", kFP16, Evidence::measured),
    from_f32<kToFP16>("cvt.rn.f16x2.f32", kFP16, Evidence::measured),
    from_f32<cast_spec(kFP16, Cast::rz)>("cvt.rz.f16.f32", kFP16, Evidence::measured),
    from_f32<kToFP16Relu>("cvt.rn.relu.f16.f32", kFP16, Evidence::measured),
    from_f32<cast_spec(kFP16, Cast::rz, Relu::yes)>("cvt.rz.relu.f16.f32", kFP16, Evidence::measured),
    from_f32<cast_spec(kFP16, Cast::rn_satfinite)>("cvt.rn.satfinite.f16.f32", kFP16, Evidence::measured),
    from_f32<cast_spec(kFP16, Cast::rz_satfinite)>("cvt.rz.satfinite.f16.f32", kFP16, Evidence::measured),
    from_f32<cast_spec(kFP16, Cast::rn_satfinite, Relu::yes)>("cvt.rn.relu.satfinite.f16.f32", kFP16,
                                                              Evidence::measured),
    from_f32<cast_spec(kFP16, Cast::rz_satfinite, Relu::yes)>("cvt.rz.relu.satfinite.f16.f32", kFP16,
                                                              Evidence::measured),
    from_f32<kToBF16>("cvt.rn.bf16.f32", kBF16, Evidence::measured),
    from_f32<kToBF16>("cvt.rn.bf16x2.f32", kBF16, Evidence::measured),
    from_f32<cast_spec(kBF16, Cast::rz)>("cvt.rz.bf16.f32", kBF16, Evidence::measured),
    from_f32<cast_spec(kBF16, Cast::rn, Relu::yes)>("cvt.rn.relu.bf16.f32", kBF16, Evidence::measured),
    from_f32<cast_spec(kBF16, Cast::rz, Relu::yes)>("cvt.rz.relu.bf16.f32", kBF16, Evidence::measured),
    from_f32<cast_spec(kBF16, Cast::rn_satfinite)>("cvt.rn.satfinite.bf16.f32", kBF16, Evidence::measured),
    from_f32<cast_spec(kBF16, Cast::rz_satfinite)>("cvt.rz.satfinite.bf16.f32", kBF16, Evidence::measured),
    from_f32<cast_spec(kBF16, Cast::rn_satfinite, Relu::yes)>("cvt.rn.relu.satfinite.bf16.f32", kBF16,
                                                              Evidence::measured),
    from_f32<cast_spec(kBF16, Cast::rz_satfinite, Relu::yes)>("cvt.rz.relu.satfinite.bf16.f32", kBF16,
                                                              Evidence::measured),
    in_register({"cvt.rna.tf32.f32", Build::any, &kFP32, &kTF32, cast_rna_tf32, simd<S::cast_rna_tf32>,
                 Reference::identity, Evidence::measured}),
    in_register({"cvt.rna.satfinite.tf32.f32", Build::any, &kFP32, &kTF32, cast_rna_satfinite_tf32,
                 simd<S::cast_rna_satfinite_tf32>, Reference::identity, Evidence::measured}),
    in_register(from_f32<tf32_spec(Cast::rn)>("cvt.rn.tf32.f32", kTF32, Evidence::measured)),
    in_register(from_f32<tf32_spec(Cast::rz)>("cvt.rz.tf32.f32", kTF32, Evidence::measured)),
    in_register(from_f32<tf32_spec(Cast::rn, Relu::yes)>("cvt.rn.relu.tf32.f32", kTF32, Evidence::measured)),
    in_register(from_f32<tf32_spec(Cast::rz, Relu::yes)>("cvt.rz.relu.tf32.f32", kTF32, Evidence::measured)),
    from_f32<kToE4M3>("cvt.rn.satfinite.e4m3x2.f32", kE4M3, Evidence::measured),
    from_f32<kToE4M3Relu>("cvt.rn.satfinite.relu.e4m3x2.f32", kE4M3, Evidence::measured),
    from_f32<kToE5M2>("cvt.rn.satfinite.e5m2x2.f32", kE5M2, Evidence::measured),
    from_f32<kToE5M2Relu>("cvt.rn.satfinite.relu.e5m2x2.f32", kE5M2, Evidence::measured),
    with_note(from_f32<cast_spec(kE3M2, Cast::rn_satfinite)>("cvt.rn.satfinite.e3m2x2.f32", kE3M2), kSm100Note),
    with_note(from_f32<cast_spec(kE3M2, Cast::rn_satfinite, Relu::yes)>("cvt.rn.satfinite.relu.e3m2x2.f32", kE3M2),
              kSm100Note),
    with_note(from_f32<cast_spec(kE2M3, Cast::rn_satfinite)>("cvt.rn.satfinite.e2m3x2.f32", kE2M3), kSm100Note),
    with_note(from_f32<cast_spec(kE2M3, Cast::rn_satfinite, Relu::yes)>("cvt.rn.satfinite.relu.e2m3x2.f32", kE2M3),
              kSm100Note),
    with_note(from_f32<cast_spec(kE2M1, Cast::rn_satfinite)>("cvt.rn.satfinite.e2m1x2.f32", kE2M1), kSm100Note),
    with_note(from_f32<cast_spec(kE2M1, Cast::rn_satfinite, Relu::yes)>("cvt.rn.satfinite.relu.e2m1x2.f32", kE2M1),
              kSm100Note),
    {"cvt.rz.ue8m0x2.f32", Build::any, &kFP32, &kE8M0, plain_ue8m0<false, false>, span_ue8m0<false, false>,
     Reference::magnitude, Evidence::ptx_manual, none, nullptr, kSm100Note},
    {"cvt.rp.ue8m0x2.f32", Build::any, &kFP32, &kE8M0, plain_ue8m0<true, false>, span_ue8m0<true, false>,
     Reference::magnitude, Evidence::ptx_manual, none, nullptr, kSm100Note},
    {"cvt.rz.satfinite.ue8m0x2.f32", Build::any, &kFP32, &kE8M0, plain_ue8m0<false, true>, span_ue8m0<false, true>,
     Reference::magnitude, Evidence::ptx_manual, none, nullptr, kSm100Note},
    {"cvt.rp.satfinite.ue8m0x2.f32", Build::any, &kFP32, &kE8M0, plain_ue8m0<true, true>, span_ue8m0<true, true>,
     Reference::magnitude, Evidence::ptx_manual, none, nullptr, kSm100Note},
    to_s8<IntegerRounding::rni>("cvt.rni.s8.f32", Evidence::measured),
    to_s8<IntegerRounding::rzi>("cvt.rzi.s8.f32", Evidence::measured),
    to_s8<IntegerRounding::rmi>("cvt.rmi.s8.f32", Evidence::measured),
    to_s8<IntegerRounding::rpi>("cvt.rpi.s8.f32", Evidence::measured),

    // casts from f16 and bf16 (ptxas 13.0 has no bf16 to FP8 or S8: bf16 is widened, which is exact, and cast from f32)
    narrow<kFP16, keep>("cvt.f32.f16", kFP32, Reference::identity, Evidence::measured),
    {"cvt.f32.bf16", Build::any, &kBF16, &kFP32, shift_bf16, each<shift_bf16>, Reference::identity, Evidence::measured},
    narrow<kFP16, plain_cast<kToBF16>>("cvt.rn.bf16.f16", kBF16, Reference::identity, Evidence::measured),
    narrow<kBF16, plain_cast<kToFP16>>("cvt.rn.f16.bf16", kFP16, Reference::identity, Evidence::measured),
    narrow<kFP16, plain_cast<kToE4M3>>("cvt.rn.satfinite.e4m3x2.f16x2", kE4M3, Reference::identity, Evidence::measured),
    narrow<kFP16, plain_cast<kToE4M3Relu>>("cvt.rn.satfinite.relu.e4m3x2.f16x2", kE4M3, Reference::relu,
                                           Evidence::measured),
    narrow<kFP16, plain_cast<kToE5M2>>("cvt.rn.satfinite.e5m2x2.f16x2", kE5M2, Reference::identity, Evidence::measured),
    narrow<kFP16, plain_cast<kToE5M2Relu>>("cvt.rn.satfinite.relu.e5m2x2.f16x2", kE5M2, Reference::relu,
                                           Evidence::measured),
    narrow<kBF16, plain_ue8m0<false, false>>("cvt.rz.ue8m0x2.bf16x2", kE8M0, Reference::magnitude),
    narrow<kBF16, plain_ue8m0<true, false>>("cvt.rp.ue8m0x2.bf16x2", kE8M0, Reference::magnitude),
    narrow<kBF16, plain_ue8m0<false, true>>("cvt.rz.satfinite.ue8m0x2.bf16x2", kE8M0, Reference::magnitude),
    narrow<kBF16, plain_ue8m0<true, true>>("cvt.rp.satfinite.ue8m0x2.bf16x2", kE8M0, Reference::magnitude),
    narrow<kFP16, plain_s8<IntegerRounding::rni>>("cvt.rni.s8.f16", kInt8, Reference::identity, Evidence::measured),
    narrow<kFP16, plain_s8<IntegerRounding::rzi>>("cvt.rzi.s8.f16", kInt8, Reference::identity, Evidence::measured),
    narrow<kFP16, plain_s8<IntegerRounding::rmi>>("cvt.rmi.s8.f16", kInt8, Reference::identity, Evidence::measured),
    narrow<kFP16, plain_s8<IntegerRounding::rpi>>("cvt.rpi.s8.f16", kInt8, Reference::identity, Evidence::measured),

    // and back
    narrow<kE4M3, plain_cast<kToFP16>>("cvt.rn.f16x2.e4m3x2", kFP16, Reference::identity, Evidence::measured),
    narrow<kE4M3, plain_cast<kToFP16Relu>>("cvt.rn.relu.f16x2.e4m3x2", kFP16, Reference::relu, Evidence::measured),
    narrow<kE5M2, plain_cast<kToFP16>>("cvt.rn.f16x2.e5m2x2", kFP16, Reference::identity, Evidence::measured),
    narrow<kE5M2, plain_cast<kToFP16Relu>>("cvt.rn.relu.f16x2.e5m2x2", kFP16, Reference::relu, Evidence::measured),
    narrow<kE3M2, plain_cast<kToFP16>>("cvt.rn.f16x2.e3m2x2", kFP16),
    narrow<kE3M2, plain_cast<kToFP16Relu>>("cvt.rn.relu.f16x2.e3m2x2", kFP16, Reference::relu),
    narrow<kE2M3, plain_cast<kToFP16>>("cvt.rn.f16x2.e2m3x2", kFP16),
    narrow<kE2M3, plain_cast<kToFP16Relu>>("cvt.rn.relu.f16x2.e2m3x2", kFP16, Reference::relu),
    narrow<kE2M1, plain_cast<kToFP16>>("cvt.rn.f16x2.e2m1x2", kFP16),
    narrow<kE2M1, plain_cast<kToFP16Relu>>("cvt.rn.relu.f16x2.e2m1x2", kFP16, Reference::relu),
    narrow<kE8M0, plain_cast<kToBF16>>("cvt.rn.bf16x2.ue8m0x2", kBF16),
    narrow<kInt8, keep>("cvt.rn.f32.s8", kFP32, Reference::identity, Evidence::measured),
    {"cvt.rn.f32.s32", Build::any, &kInt32, &kFP32, int2float_rn, simd<S::int2float_rn>, Reference::identity,
     Evidence::measured},
    {"cvt.rz.f32.s32", Build::any, &kInt32, &kFP32, int2float_rz, simd<S::int2float_rz>, Reference::identity,
     Evidence::measured},
    {"__int2float_rz", Build::any, &kInt32, &kFP32, int2float_rz, simd<S::int2float_rz>, Reference::identity,
     Evidence::measured, none, nullptr, "cvt.rz.f32.s32"},
};

/// The names that share the longest run of leading characters with `name`, at most eight of them.
std::string similar_names(std::string_view name) {
  const auto common = [&](std::string_view other) {
    const auto [end, unused] = std::mismatch(name.begin(), name.end(), other.begin(), other.end());
    return end - name.begin();
  };
  std::vector<std::string_view> names;
  for (const Function& function : functions()) {
    if (std::find(names.begin(), names.end(), function.name) == names.end()) names.push_back(function.name);
  }
  std::stable_sort(names.begin(), names.end(),
                   [&](std::string_view a, std::string_view b) { return common(a) > common(b); });
  names.resize(std::min<std::size_t>(names.size(), 8));
  std::string list;
  for (const std::string_view other : names) list.append(list.empty() ? "" : ", ").append(other);
  return list;
}

}  // namespace

std::span<const Function> functions() { return kFunctions; }

const Function* find_or_null(std::string_view name, Build build) {
  const Build wanted = build == Build::any ? Build::plain : build;
  const auto matches = [&](const Function& function) {
    return function.name == name && (function.build == Build::any || function.build == wanted);
  };
  const auto found = std::find_if(std::begin(kFunctions), std::end(kFunctions), matches);
  return found == std::end(kFunctions) ? nullptr : found;
}

const Function& find(std::string_view name, Build build) {
  if (const Function* function = find_or_null(name, build)) return *function;
  throw Error(ErrorKind::usage,
              "unknown function \"" + std::string(name) + "\"; similar names: " + similar_names(name));
}

Build build_from_options(std::string_view nvcc_options) {
  const bool fast = nvcc_options.find("use_fast_math") != std::string_view::npos;
  return fast ? Build::fast_math : Build::plain;
}

std::string_view to_string(Build build) {
  constexpr std::string_view names[] = {"any", "plain", "fast-math"};
  return names[static_cast<std::size_t>(build)];
}

std::string_view to_string(Evidence evidence) {
  constexpr std::string_view names[] = {"measured here", "PTX manual", "published"};
  return names[static_cast<std::size_t>(evidence)];
}

std::string_view to_string(Reference reference) {
  constexpr std::string_view names[] = {"2^x",     "e^x",     "log2(x)", "ln(x)", "1/x",      "1/sqrt(x)",
                                        "sqrt(x)", "tanh(x)", "x",       "|x|",   "max(x, 0)"};
  return names[static_cast<std::size_t>(reference)];
}

std::string_view to_string(Mufu mufu) {
  constexpr std::string_view names[] = {"", "MUFU.EX2", "MUFU.RCP", "MUFU.LG2", "MUFU.RSQ", "MUFU.SQRT", "MUFU.TANH"};
  return names[static_cast<std::size_t>(mufu)];
}

}  // namespace qattn::scalar
