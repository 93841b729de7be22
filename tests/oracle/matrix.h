// The slow program's matrix: rows are tokens, columns are channels.
#pragma once

#include <cstddef>
#include <vector>

namespace oracle {

/// Sums are kept in 64 bits, which hold those of narrow numbers exactly.
using Wide = long double;
inline Wide wide(double x) { return static_cast<Wide>(x); }

struct Matrix {
  int rows = 0;
  int columns = 0;
  std::vector<double> elements;

  Matrix() = default;
  Matrix(int r, int c, double value = 0.0)
      : rows(r), columns(c), elements(static_cast<std::size_t>(r) * static_cast<std::size_t>(c), value) {}

  double& operator()(int r, int c) { return elements[offset(r) + static_cast<std::size_t>(c)]; }
  double operator()(int r, int c) const { return elements[offset(r) + static_cast<std::size_t>(c)]; }

 private:
  std::size_t offset(int r) const { return static_cast<std::size_t>(r) * static_cast<std::size_t>(columns); }
};

}  // namespace oracle
