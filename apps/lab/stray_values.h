// Wrong rows and elements that a noisy recipe's limits let pass.
#pragma once

#include <cstdint>
#include <optional>

#include "lab/checked_head.h"
#include "lab/diagnosis.h"

namespace qattn::lab {

/// A row that holds, code for code, what another row holds, though the recipe's two rows differ. Distances are root
/// mean squares over the channels, each in units of the recipe's error in it. The row has to be as far from its own
/// float64 row, and that from the other's, as 4 times what the recipe loses there; half of its loss is enough where no
/// other row is half as far from what it shares with the recipe (shared_error()). Rows of zeros are not looked at.
std::optional<Finding> repeated_row(const CheckedHead& head);

/// Rows that are all moved by the same distance: eight of ten rows, of some tens that are tried, are at most half as
/// far (largest difference) from the recipe's row there as from their own.
std::optional<Finding> rolled_rows(const CheckedHead& head);

/// Elements that are further off than the recipe's errors in their row and channel make plausible: 6.5 times the
/// largest such error of the recipe and its relatives; or a single one at 1.5 times the recipe's own, and 3.5 times any
/// other element's. What an element is off is the least of o - r, o - e and o - r - s (e - r), r float64 attention, e
/// the recipe's output and s shared_error(). `factor` is --factor: above 2, both 6.5 and 1.5 grow in proportion. More
/// than `most` are no strays: something else is wrong.
std::optional<Finding> stray_elements(const CheckedHead& head, double factor, std::int64_t most);

}  // namespace qattn::lab
