// Smoothing on the device, and the terms that put back what it took; as quantize.h.
#pragma once

#include <cstdint>

#include "attention/quantize.h"

namespace qattn::gpu {

/// Means [blocks, columns] over blocks of `block_rows` tokens: the f64 sum in token order, divided by the number of
/// tokens in f64, rounded to f32 (quant::token_means; block_rows = x.rows: one mean over all).
int find_token_means(const DeviceMatrix& x, std::int64_t block_rows, float* means);

/// x = RN(x - mean of its block).
int subtract_means(const DeviceMatrix& x, std::int64_t block_rows, const float* means);

/// scores[row] = q_row . k_mean, an f64 sum in channel order: what smoothing K took from every score of the row.
int find_mean_scores(const DeviceMatrix& q, const float* k_mean, double* scores);

/// correction[block, key] = q_means_block . k_key, products exact in f64, added in f64 in channel order, rounded once
/// to FP32, FP16 or BF16 (quant::mean_correction).
int find_correction(const DeviceMatrix& q_means, const DeviceMatrix& k, ElementType rounded_to, float* correction);

}  // namespace qattn::gpu
