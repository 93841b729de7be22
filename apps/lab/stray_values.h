// Single wrong rows and elements that a noisy recipe's limits let pass.
#pragma once

#include <optional>

#include "lab/checked_head.h"
#include "lab/diagnosis.h"

namespace qattn::lab {

/// A row that holds, code for code, what another row holds, though the recipe's two rows differ. Distances are root
/// mean squares over the channels, each in units of the recipe's error in it. The row has to be as far from its own
/// float64 row, and that from the other's, as 1.5 times what the recipe loses there; half of it is enough where no
/// other row is half as far from what it shares with the recipe (shared_error()). Rows of zeros are not looked at.
std::optional<Finding> repeated_row(const CheckedHead& head);

/// One element that is further off than the recipe's errors in its row and channel make plausible: 6.5 times the
/// recipe's own largest such error; or 1.5 times that, and 3.5 times any other element's. What it is off is the least
/// of o - r, o - e and o - r - s (e - r), r float64 attention, e the recipe's output and s shared_error(). `factor` is
/// --factor: above 2, both 6.5 and 1.5 grow in proportion.
std::optional<Finding> stray_element(const CheckedHead& head, double factor);

}  // namespace qattn::lab
