#!/usr/bin/env python3
"""qattn-bench beside what a user would run instead, on one core in one run.

Runs under an interpreter that has PyTorch, NumPy and ml_dtypes (--python; what it lacks is left out), or makes a virtual
environment with them from PyPI (--venv DIR, made where it is missing). Measures in turn, by the process's CPU time and
the best of several rounds:
  - PyTorch's float32 GEMM and scaled_dot_product_attention, PyTorch's and ml_dtypes' casts to E4M3;
  - MMA-Sim's Python model of wgmma, when --mma-sim names a checkout of it;
  - CPFloat's rounding to E4M3, when --cpfloat names its shared library (it is on neither PyPI nor Debian; its own
    `make lib` builds it; without OpenMP it stays on one core);
  - qattn-bench (--bench PROGRAM).
Writes every figure to --json FILE and tables with ratios to --markdown FILE. No code of the peers is part of QAttn.

  apps/bench/peers.py --bench build/release/bin/qattn-bench --venv DIR --json results.json --markdown results.md
  QATTN_SIMD=AVX2 apps/bench/peers.py --bench PROGRAM --python python3 --filter '^attention/sage2-8b/4096'
"""

import argparse
import ctypes
import importlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

PACKAGES = ["numpy", "ml_dtypes", "torch"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
ROUNDS = 5
CAST_SIZES = [1 << 16, 1 << 22]

# What each figure of ours is held against: (name of ours, name of the peer, wanted ratio ours / peer).
COMPARISONS = [
    ("mma/sm90.wgmma.m64nNk32.f32.e4m3.e4m3/AVX3", "torch float32 GEMM", 1 / 4),
    ("mma/sm90.wgmma.m64nNk32.f32.e4m3.e4m3/AVX2", "torch float32 GEMM", 1 / 9),
    ("mma/sm90.wgmma.m64nNk32.f32.e4m3.e4m3/AVX3", "MMA-Sim wgmma e4m3", 1e5),
    ("kernel/sageattn_qk_int8_pv_fp8_cuda_sm90/4096/64", "torch float32 attention 4096 x 64", 1 / 3),
    ("attention/sage2-8b/4096/64", "torch float32 attention 4096 x 64", None),
    ("encode/e4m3/65536", "torch cast to e4m3, 65536", 3),
    ("encode/e4m3/4194304", "torch cast to e4m3, 4194304", 3),
    ("encode/e4m3/65536", "ml_dtypes cast to e4m3, 65536", None),
    ("encode/e4m3/4194304", "ml_dtypes cast to e4m3, 4194304", None),
    ("encode/e4m3/65536", "CPFloat rounding to e4m3, 65536", None),
    ("encode/e4m3/4194304", "CPFloat rounding to e4m3, 4194304", None),
]

# What a figure of ours must not exceed: (name of ours, quantity, unit, limit).
LIMITS = [
    ("layer/sage2-8b/30/17776/64/1/iterations:1/repeats:1/real_time", "real_time", "s", 120),
    ("memory/sage2-8b/32768/64/iterations:1/repeats:1", "MB_beyond_input", "MB", 200),
]


def best_seconds(work):
    """The least CPU time of one call of `work`, which is repeated until it is measurable."""
    repeats = 1
    while True:
        times = []
        for _ in range(ROUNDS):
            start = time.process_time()
            for _ in range(repeats):
                work()
            times.append(time.process_time() - start)
        if min(times) > 0.02:
            return min(times) / repeats
        repeats *= 4


def unless_missing(work):
    """What `work()` gives, or None where something that it needs is missing; what it is goes to stderr."""
    try:
        return work()
    except (ImportError, OSError, AttributeError) as error:
        print(f"peers.py: left out: {error}", file=sys.stderr)
        return None


def installed(name):
    return unless_missing(lambda: importlib.import_module(name))


def measure_peers(mma_sim, cpfloat):
    """Rates of the peers that can be imported; runs under the peers' interpreter."""
    torch, numpy, ml_dtypes = installed("torch"), installed("numpy"), installed("ml_dtypes")
    found = {"torch": torch, "numpy": numpy, "ml_dtypes": ml_dtypes}
    result = {"rates": {}, "versions": {name: module.__version__ for name, module in found.items() if module}}
    rates = result["rates"]
    if torch:
        torch.set_num_threads(1)
        rates.update(measure_torch(torch))
        result["torch_cpu"] = torch.backends.cpu.get_cpu_capability()
    if numpy:
        rates.update(measure_casts(numpy, ml_dtypes, cpfloat))
    rate = unless_missing(lambda: measure_mma_sim(mma_sim, torch)) if mma_sim and torch else None
    if rate:
        rates["MMA-Sim wgmma e4m3"] = rate
        result["versions"]["MMA-Sim"] = mma_sim
    return result


def measure_torch(torch):
    rates = {}
    n = 2048
    a, b = torch.randn(n, n), torch.randn(n, n)
    rates["torch float32 GEMM"] = n**3 / best_seconds(lambda: a @ b.T)
    attention = torch.nn.functional.scaled_dot_product_attention
    for tokens, head_dim in [(1024, 64), (4096, 64), (4096, 128)]:
        q, k, v = (torch.randn(1, 1, tokens, head_dim) for _ in range(3))
        seconds = best_seconds(lambda: attention(q, k, v))
        rates[f"torch float32 attention {tokens} x {head_dim}"] = 2 * tokens**2 * head_dim / seconds
    for elements in CAST_SIZES:
        x, y = torch.randn(elements), torch.empty(elements, dtype=torch.float8_e4m3fn)
        rates[f"torch cast to e4m3, {elements}"] = elements / best_seconds(lambda: y.copy_(x))
    return rates


def measure_casts(numpy, ml_dtypes, cpfloat):
    rates = {}
    rounding = unless_missing(lambda: ctypes.CDLL(cpfloat).cpfloatf) if cpfloat else None
    for elements in CAST_SIZES:
        x = numpy.random.default_rng(1).standard_normal(elements, dtype=numpy.float32)
        if ml_dtypes:
            seconds = best_seconds(lambda: x.astype(ml_dtypes.float8_e4m3fn))
            rates[f"ml_dtypes cast to e4m3, {elements}"] = elements / seconds
        if rounding:
            y = numpy.empty_like(x)
            seconds = best_seconds(cpfloat_call(rounding, x.ctypes.data, y.ctypes.data, elements))
            rates[f"CPFloat rounding to e4m3, {elements}"] = elements / seconds
    return rates


class CpfloatOptions(ctypes.Structure):
    """`optstruct` of CPFloat's documentation; the last three are its random states."""

    _fields_ = [("format", ctypes.c_char * 15), ("precision", ctypes.c_uint)]
    _fields_ += [(name, ctypes.c_int) for name in ("emin", "emax", "explim", "infinity", "round")]
    _fields_ += [(name, ctypes.c_int) for name in ("saturation", "subnormal", "flip")]
    _fields_ += [("p", ctypes.c_double)] + [(name, ctypes.c_void_p) for name in ("bits", "floats", "doubles")]


def cpfloat_call(rounding, source, target, elements):
    """A call of cpfloatf() on arrays at those addresses: 4 bits of precision, exponents -6 to 8, subnormals, to
    nearest even, saturating."""
    rounding.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    options = CpfloatOptions(b"e4m3", 4, -6, 8, 1, 0, 1, 1, 1, 0, 0.0)
    return lambda: rounding(target, source, elements, ctypes.addressof(options))


def measure_mma_sim(folder, torch):
    """Multiply-adds a second of MMA-Sim's Hopper wgmma m64n8k32, E4M3 to f32."""
    sys.path.insert(0, folder)
    from mmasim.simulator.nv_ptx import wgmma

    instruction = wgmma(arch="Hopper", qualifier="m64n8k32.f32.e4m3.e4m3")
    a = torch.randn(64, 32).to(torch.float8_e4m3fn)
    b = torch.randn(8, 32).T.contiguous().to(torch.float8_e4m3fn)
    c = torch.zeros(64, 8)
    return 64 * 8 * 32 / best_seconds(lambda: instruction(a, b, c))


def fail(message):
    """Ends with status 3: something could not be read, made or written."""
    print(f"peers.py: {message}", file=sys.stderr)
    sys.exit(3)


def environment(folder):
    """The Python of a virtual environment that has the peers."""
    try:
        return made_environment(folder)
    except OSError as error:
        fail(f"--venv {folder}: {error}")
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or "").strip().splitlines() or [f"status {error.returncode}"]
        fail(f"--venv {folder}: no environment with {', '.join(PACKAGES)} could be made: {said[-1]}")


def made_environment(folder):
    run = {"check": True, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    python = pathlib.Path(folder) / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], **run)
    check = "import " + ", ".join(PACKAGES)
    if subprocess.run([python, "-c", check], stderr=subprocess.DEVNULL).returncode != 0:
        pip = [python, "-m", "pip", "install", "--quiet", "--extra-index-url", "https://download.pytorch.org/whl/cpu"]
        subprocess.run(pip + PACKAGES, **run)
    return python


def run_bench(program, pattern, seconds):
    """Google Benchmark's report on what `pattern` chooses, each case the best of its repetitions."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "bench.json"
        command = [
            program,
            f"--benchmark_filter={pattern}",
            f"--benchmark_min_time={seconds}",
            f"--benchmark_repetitions={ROUNDS}",
            f"--benchmark_out={out}",
            "--benchmark_out_format=json",
        ]
        status = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
        if status != 0:
            fail(f"{program} ended with status {status}; does --filter '{pattern}' leave anything?")
        return json.loads(out.read_text())


def cases_of(report):
    """(name, case) of what was measured, without statistics over repetitions."""
    return [(case["run_name"], case) for case in report["benchmarks"] if case.get("run_type") == "iteration"]


def rates_of(reports):
    rates = {}
    for name, case in (found for report in reports for found in cases_of(report)):
        if "items_per_second" in case:
            rates[name] = max(rates.get(name, 0.0), case["items_per_second"])
    return rates


def limited_of(reports):
    """What LIMITS names, in its units."""
    seconds = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    values = {}
    for name, case in (found for report in reports for found in cases_of(report)):
        for wanted, quantity, _, _ in LIMITS:
            if name == wanted and quantity in case:
                values[name] = case[quantity] * (seconds[case["time_unit"]] if quantity == "real_time" else 1.0)
    return values


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def human(rate):
    for factor, unit in [(1e9, "G"), (1e6, "M"), (1e3, "k")]:
        if rate >= factor:
            return f"{rate / factor:.3g} {unit}/s"
    return f"{rate:.3g} /s"


def table(result):
    """Comparisons and limits first, then every figure."""
    ours, peers = result["qattn"], result["peers"]
    lines = [f"{result['processor']}, {os.cpu_count()} cores, {result['date']}; one core, CPU time, best of {ROUNDS}."]
    lines += ["", "| QAttn | rate | peer | rate | ratio | aim |", "|---|---:|---|---:|---:|---:|"]
    for name, peer, aim in COMPARISONS:
        if name not in ours or peer not in peers:
            continue
        ratio = ours[name] / peers[peer]
        goal = "" if aim is None else f"{aim:.3g}"
        lines.append(f"| `{name}` | {human(ours[name])} | {peer} | {human(peers[peer])} | {ratio:.3g} | {goal} |")
    if result["limited"]:
        lines += ["", "| QAttn | measured | at most |", "|---|---:|---:|"]
    for name, _, unit, limit in LIMITS:
        if name in result["limited"]:
            lines.append(f"| `{name}` | {result['limited'][name]:.4g} {unit} | {limit} {unit} |")
    lines += ["", "| | rate |", "|---|---:|"]
    lines += [f"| `{name}` | {human(rate)} |" for name, rate in ours.items()]
    lines += [f"| {name} | {human(rate)} |" for name, rate in peers.items()]
    return "\n".join(lines) + "\n"


def peers_twice(options, between):
    """The peers' rates before and after `between()`, the better of each, so that a busy minute hits both sides."""
    python = options.python or environment(options.venv)
    command = [python, __file__, "--peers-only"]
    for name, value in [("--mma-sim", options.mma_sim), ("--cpfloat", options.cpfloat)]:
        command += [name, value] if value else []

    def measured(stderr=None):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr)
        if done.returncode != 0:
            fail(f"measuring the peers under {python} failed")
        try:
            return json.loads(done.stdout)
        except ValueError:
            fail(f"{python} is no Python interpreter")

    peers = measured()
    report = between()
    again = measured(subprocess.DEVNULL)  # what is left out has been said
    peers["rates"] = {name: max(rate, again["rates"][name]) for name, rate in peers["rates"].items()}
    return peers, report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/release/bin/qattn-bench", help="the program")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--venv", help="folder of a virtual environment with the peers, made where it is missing")
    source.add_argument("--python", help="an interpreter that has the peers, or some of them")
    parser.add_argument("--mma-sim", help="a checkout of MMA-Sim, which is then measured too")
    parser.add_argument("--cpfloat", help="CPFloat's shared library, which is then measured too")
    parser.add_argument("--report", action="append", default=[], help="a JSON report of qattn-bench to show as well")
    parser.add_argument("--filter", default="^(mma|encode|decode|scalar|quantize)/|/(1024|4096)/(64|128)$")
    parser.add_argument("--seconds", type=float, default=0.2, help="per repetition of a case")
    parser.add_argument("--json", help="file for every figure")
    parser.add_argument("--markdown", help="file for the table; default: stdout")
    parser.add_argument("--peers-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peers_only:
        print(json.dumps(measure_peers(options.mma_sim, options.cpfloat)))
        return
    if not options.venv and not options.python:
        parser.error("--venv DIR or --python INTERPRETER is needed")
    for program in [options.bench, options.python]:
        if program and not shutil.which(program):
            parser.error(f"{program} is no program")
    try:
        written_before = [json.loads(pathlib.Path(file).read_text()) for file in options.report]
    except (OSError, ValueError) as error:
        parser.error(f"--report: {error}")
    os.environ.update(ONE_THREAD)
    peers, report = peers_twice(options, lambda: run_bench(options.bench, options.filter, options.seconds))
    reports = [report] + written_before
    result = {
        "processor": processor(),
        "date": report["context"]["date"],
        "context": report["context"],
        "versions": peers["versions"],
        "torch_cpu": peers.get("torch_cpu"),
        "peers": peers["rates"],
        "qattn": rates_of(reports),
        "limited": limited_of(reports),
    }
    try:
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
        if options.markdown:
            pathlib.Path(options.markdown).write_text(table(result))
    except OSError as error:
        fail(error)
    if not options.markdown:
        print(table(result), end="")


if __name__ == "__main__":
    main()
