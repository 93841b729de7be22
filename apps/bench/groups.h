// The groups of measurements; each registers its own with Google Benchmark. Rates are per second of CPU time.
#pragma once

namespace qattn::bench {

/// `mma/<instruction>/<SIMD target>`: multiply-adds, for one instruction of each family on every target of the machine,
/// and by the plain engine; `mma/<instruction>/nonnegative`: a tile of attention's P V on the best target.
void register_matrix_products();

/// `encode/<format>/<elements>`, `decode/...`, `scalar/<function>`, `quantize/<what>`: elements.
void register_casts();

/// `attention/<recipe>/<N>/<d>`: multiply-adds of one head (2 N^2 d), `kernel/<name>/<N>/<d>` the same for the replay
/// of a published kernel, `reference/<N>/<d>` for float64; in wall-clock time
/// `threads/<recipe>/<heads>/<N>/<d>/<threads>` and `layer/...` of the same form, a video model's layer.
void register_attention();

/// `memory/<recipe>/<N>/<d>`: the peak of the resident set beyond what the inputs take, in MB, as a counter.
void register_memory();

}  // namespace qattn::bench
