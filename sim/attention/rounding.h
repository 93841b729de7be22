// Small operations that the forward and the backward pass share.
#pragma once

#include <span>

#include "attention/recipe.h"

namespace qattn::attention {

/// x rounded to nearest-even in `format`; overflow to Inf where the format has one, subnormals kept.
float rounded(const format::Format& format, float x);
double rounded(const format::Format& format, double x);

/// exp2 of every element in place, as the recipe computes it. Functions of f32 take the f32 next to an f64.
void apply_exp2(Exp2 kind, std::span<float> x);
void apply_exp2(Exp2 kind, std::span<double> x);

}  // namespace qattn::attention
