"""Compares the conversions that dump_formats prints with ml_dtypes, NumPy and gfloat.

usage: check_against_python.py PATH_OF_dump_formats

Exit status: 0 all agree, 1 some differ, 77 ml_dtypes or gfloat (or NumPy) is not importable.

Left out of the comparison, because it is policy and not a fault of either side:
- NaN's code. Ours is one canonical NaN a format; ml_dtypes keeps the sign (E4M3: 0xFF for -NaN and for -1000). Any NaN
  equals any NaN here.
- NaN in formats without NaN (E2M1, E3M2, E2M3, INT8). Ours is 0; ml_dtypes gives -0 for NaN with a clear sign bit and 0
  otherwise; gfloat raises an error.
- Ties in E8M0. Ours go up, as in ml_dtypes and as IEEE 754-2019 4.3.1 says for one-digit precision (no significand is
  even); gfloat takes the even code, so 3 becomes 2 there.
- E8M0 of zero and of negative numbers: ours is NaN (inf_or_nan, as in ml_dtypes) or 2^-127 (saturate); gfloat takes
  the format as a set of values without sign and leaves them as they are. Positive numbers below 2^-127: ours is 2^-127
  in every rounding, as in ml_dtypes; gfloat's result is no value of the format.
- E8M0 between 2^-127 and 2^-126, where the input is subnormal as a float: ml_dtypes 0.6 rounds some numbers below the
  midpoint up (2^-127 + 2^-149 gives 2^-126, 1.25 * 2^-127 gives 2^-127). gfloat agrees with ours there.
- Overflow without saturation in formats with neither Inf nor NaN: ours saturates, as in ml_dtypes; gfloat raises an
  error.
- Encoding INT4: ml_dtypes truncates and wraps, as C++ casts do. Only its decoding is compared.
"""

import subprocess
import sys

try:
    import gfloat
    import gfloat.formats
    import ml_dtypes
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

NUMPY_TYPES = {
    "fp16": np.float16, "bf16": ml_dtypes.bfloat16,
    "e5m2": ml_dtypes.float8_e5m2, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz, "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e3m2": ml_dtypes.float6_e3m2fn, "e2m3": ml_dtypes.float6_e2m3fn, "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu, "int8": np.int8, "int4": ml_dtypes.int4,
}
GFLOAT_FORMATS = {
    "fp16": gfloat.formats.format_info_binary16, "bf16": gfloat.formats.format_info_bfloat16,
    "e5m2": gfloat.formats.format_info_ocp_e5m2, "e4m3": gfloat.formats.format_info_ocp_e4m3,
    "e3m2": gfloat.formats.format_info_ocp_e3m2, "e2m3": gfloat.formats.format_info_ocp_e2m3,
    "e2m1": gfloat.formats.format_info_ocp_e2m1, "e8m0": gfloat.formats.format_info_ocp_e8m0,
    "int8": gfloat.formats.format_info_ocp_int8,
}
GFLOAT_SCALES = {"int8": 2.0**-6}  # OCP MX's INT8 has an implied scale
GFLOAT_ROUNDINGS = {
    "nearest_even": gfloat.RoundMode.TiesToEven, "nearest_away": gfloat.RoundMode.TiesToAway,
    "toward_zero": gfloat.RoundMode.TowardZero, "up": gfloat.RoundMode.TowardPositive,
    "down": gfloat.RoundMode.TowardNegative,
}


def read_dump(program):
    """The blocks of a dump: (kind, [words of the header], first column, second column)."""
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    at = 0
    while at < len(lines):
        header = lines[at].split()
        count = int(header[-1])
        body = " ".join(lines[at + 1:at + 1 + count]).split()
        table = np.array(body, dtype=np.uint64).reshape(count, 2)
        yield header[0], header[1:-1], table[:, 0], table[:, 1]
        at += 1 + count


def same_number(a, b):
    """Equal bits, or both NaN."""
    return (np.isnan(a) & np.isnan(b)) | (a.view(np.uint64) == b.view(np.uint64))


class Comparison:
    def __init__(self):
        self.failed = 0
        self.compared = {}

    def check(self, what, x, ours, theirs, included):
        agree = same_number(ours, theirs) | ~included
        count = int(included.sum())
        self.compared[what] = count
        wrong = np.flatnonzero(~agree)
        self.failed += len(wrong)
        print(f"{what}: {count} compared, {len(wrong)} differ")
        for i in wrong[:5]:
            print(f"  x {float(x[i])!r}: ours {float(ours[i])!r}, theirs {float(theirs[i])!r}")


def numpy_value_of(type_, codes, name):
    """The doubles that NumPy gives codes."""
    width = np.uint16 if np.dtype(type_).itemsize == 2 else np.uint8
    narrow = codes.astype(width)
    if name == "int4":
        return narrow.view(np.int8).astype(type_).astype(np.float64)
    return narrow.view(type_).astype(np.float64)


def check_numpy(comparison, name, policy, x, ours, has_nan):
    """Encoding by ml_dtypes or NumPy: to nearest-even, overflow to Inf or NaN."""
    if name not in NUMPY_TYPES or name in ("int8", "int4") or policy != ["nearest_even", "inf_or_nan"]:
        return
    included = ~np.isnan(x) | has_nan
    if name == "e8m0":
        included &= ~((x > 2.0**-127) & (x < 2.0**-126))
    theirs = x.astype(NUMPY_TYPES[name]).astype(np.float64)
    comparison.check(f"numpy encode {name}", x, ours, theirs, included)


def check_gfloat(comparison, name, policy, x, ours, has_nan):
    if name not in GFLOAT_FORMATS or (policy[1] == "inf_or_nan" and not has_nan):
        return
    info = GFLOAT_FORMATS[name]
    scale = GFLOAT_SCALES.get(name, 1.0)
    wide = x.astype(np.float64)
    included = ~np.isnan(x) | has_nan
    if name == "e8m0":
        tie = np.frexp(np.where(np.isfinite(wide), wide, 0.0))[0] == 0.75
        included &= ~(wide < 2.0**-127) & ~(tie & policy[0].startswith("nearest_even"))
    theirs = gfloat.round_ndarray(info, np.where(included, wide, 1.0) * scale, GFLOAT_ROUNDINGS[policy[0]],
                                  policy[1] == "saturate") / scale
    comparison.check(f"gfloat encode {name} {' '.join(policy)}", x, ours, theirs, included)


def main(program):
    comparison = Comparison()
    values = {}
    with np.errstate(all="ignore"):
        for kind, words, first, second in read_dump(program):
            name = words[0]
            if kind == "values":
                values[name] = second.view(np.float64)
                everything = np.ones(len(first), bool)
                if name in NUMPY_TYPES:
                    theirs = numpy_value_of(NUMPY_TYPES[name], first, name)
                    comparison.check(f"numpy decode {name}", first, values[name], theirs, everything)
                if name in GFLOAT_FORMATS:
                    theirs = gfloat.decode_ndarray(GFLOAT_FORMATS[name], first) / GFLOAT_SCALES.get(name, 1.0)
                    comparison.check(f"gfloat decode {name}", first, values[name], theirs, everything)
                continue
            x = first.astype(np.uint32).view(np.float32)
            ours = values[name][second.astype(np.int64)]
            has_nan = bool(np.isnan(values[name]).any())
            check_numpy(comparison, name, words[1:], x, ours, has_nan)
            check_gfloat(comparison, name, words[1:], x, ours, has_nan)
    expected = 12 + 10 + 9  # at the least: NumPy's decodes and encodes, gfloat's decodes
    if len(comparison.compared) < expected or min(comparison.compared.values()) < 16:
        print(f"only {len(comparison.compared)} comparisons: the dump is incomplete")
        return 1
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
