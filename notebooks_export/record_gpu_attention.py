"""Records what attention functions that QAttn does not replay return on a GPU, as dumps for `qattn check`.

    python record_gpu_attention.py data/real/smollm2_2.h5 data/vectors/gpu_attention.h5 data/vectors/broken_attention.h5

Two query heads of SmolLM2 that share a key-value head (layer 18) go through a flash attention forward written in
Triton (FP16, BF16, E5M2, and INT8 Q K^T with a scale a block), compiled flex_attention, and the math backend and the
default of scaled_dot_product_attention. The second file holds the same Triton kernel with one mistake built in at a
time. Calls with the same input share q, k and v by links. Needs PyTorch with CUDA and Triton; a function that is not
to be had on the machine is reported and left out. The versions and the GPU are written into the files.
"""

import sys

import h5py
import numpy as np
import torch
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

LAYER, HEADS, KV_HEAD = "layer_18", slice(0, 2), slice(0, 1)
TOKENS = 160  # two tiles of 128 query rows, two and a half tiles of 64 keys
BROKEN_TOKENS = 144
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # Triton's interpreter runs the script on a CPU, for a try
DTYPE_NAMES = {torch.bfloat16: "bfloat16", torch.float8_e5m2: "float8_e5m2"}
LOG2_E = 1.4426950408889634


@triton.jit
def attend_tiles(q_ptr, k_ptr, v_ptr, q_scale_ptr, k_scale_ptr, o_ptr, lse_ptr, rows, keys, share, diagonal, scale_log2,
                 v_key_step, v_channel_step, CAUSAL: tl.constexpr, SCALED: tl.constexpr, MISTAKE: tl.constexpr,
                 ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr):
    """One query tile of one head: softmax in base 2 over tiles of keys, f32 sums, lse in base 2. Row i sees keys up to
    i + diagonal. SCALED: integer Q and K with a scale for each tile. MISTAKE: "" or what goes wrong."""
    tile, head = tl.program_id(0), tl.program_id(1)
    heads = tl.num_programs(1)
    row = tile * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, DIM)
    row_there = row[:, None] < rows
    q = tl.load(q_ptr + (head * rows + row[:, None]) * DIM + channel[None, :], mask=row_there, other=0.0)
    kv_head = head // share
    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    o = tl.zeros([ROWS, DIM], tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, tile * ROWS + ROWS + diagonal)
    if MISTAKE == "dropped_tail":
        end = end // KEYS * KEYS
    for start in range(0, end, KEYS):
        key = start + tl.arange(0, KEYS)
        k_at = k_ptr + (kv_head * keys + key[:, None]) * DIM + channel[None, :]
        k = tl.load(k_at, mask=key[:, None] < keys, other=0.0)
        s = tl.dot(q, tl.trans(k)).to(tl.float32)
        if SCALED:
            k_scale_at = kv_head * tl.cdiv(keys, KEYS) + start // KEYS
            if MISTAKE == "wrong_scale":
                k_scale_at -= tl.where(start == KEYS, 1, 0)  # the second tile has the first one's
            q_scale = tl.load(q_scale_ptr + head * tl.num_programs(0) + tile)
            s = s * (q_scale * tl.load(k_scale_ptr + k_scale_at))
        visible = (key[None, :] < keys) & (row[:, None] >= 0)
        if CAUSAL:
            visible = visible & (key[None, :] <= row[:, None] + diagonal)
        s = tl.where(visible, s, float("-inf"))
        new_m = tl.maximum(m, tl.max(s, 1) * scale_log2)
        p = tl.exp2(s * scale_log2 - new_m[:, None])
        shrink = tl.exp2(m - new_m)
        l = l * shrink + tl.sum(p, 1)
        if MISTAKE != "stale_o":
            o = o * shrink[:, None]
        v_key = key
        if MISTAKE == "stale_v":
            v_key = key - tl.where(start == KEYS, KEYS, 0)  # the second tile meets the first one's V
        v_at = v_ptr + kv_head * keys * DIM + v_key[:, None] * v_key_step + channel[None, :] * v_channel_step
        v = tl.load(v_at, mask=v_key[:, None] < keys, other=0.0)
        o = tl.dot(p.to(v.dtype), v, o)
        m = new_m
    out_head = head
    if MISTAKE == "swapped_heads":
        out_head = heads - 1 - head
    o_at = o_ptr + (out_head * rows + row[:, None]) * DIM + channel[None, :]
    tl.store(o_at, (o / l[:, None]).to(o_ptr.dtype.element_ty), mask=row_there)
    tl.store(lse_ptr + out_head * rows + row, m + tl.log2(l), mask=row < rows)


def triton_attention(q, k, v, scale, causal, *, top_left=False, mistake="", scales=None, o_dtype=None):
    """o and lse of one batch. A causal mask is aligned bottom right unless `top_left`."""
    heads, rows, dim = q.shape[1:]
    keys = k.shape[2]
    if v.dtype == torch.float8_e5m2:  # Hopper multiplies FP8 with both operands contiguous along the sum
        v = v.transpose(2, 3).contiguous().transpose(2, 3)
    o = torch.empty(q.shape, dtype=o_dtype or q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    q_scale, k_scale = scales or (lse, lse)
    attend_tiles[(triton.cdiv(rows, 128), heads)](
        q, k, v, q_scale, k_scale, o, lse, rows, keys, heads // k.shape[1], 0 if top_left else keys - rows,
        scale * LOG2_E, v.stride(2), v.stride(3), CAUSAL=causal, SCALED=scales is not None, MISTAKE=mistake,
        ROWS=128, KEYS=64, DIM=dim, num_warps=8)
    return o, lse


def int8_blocks(x, tokens):
    """INT8 codes and a scale for each block of tokens."""
    scales = torch.stack([t.abs().amax((2, 3)) / 127 for t in x.float().split(tokens, 2)], 2)
    each = scales.repeat_interleave(tokens, 2)[:, :, : x.shape[2], None]
    return torch.clamp(torch.round(x.float() / each), -127, 127).to(torch.int8), scales.contiguous()


def triton_int8(q, k, v, scale, causal, mistake=""):
    """K less its mean over the tokens, as SageAttention does; so there is no lse of the scores that went in."""
    (q_codes, q_scale), (k_codes, k_scale) = int8_blocks(q, 128), int8_blocks(k.float() - k.float().mean(2, True), 64)
    o, _ = triton_attention(q_codes, k_codes, v, scale, causal, mistake=mistake, scales=(q_scale, k_scale),
                            o_dtype=v.dtype)
    return o, None


def flex(q, k, v, scale, causal):
    mask = create_block_mask(lambda b, h, i, j: j <= i, None, None, q.shape[2], k.shape[2], device=DEVICE)
    compiled = torch.compile(flex_attention)
    return compiled(q, k, v, block_mask=mask if causal else None, scale=scale, enable_gqa=True, return_lse=True)


def sdpa(q, k, v, scale, causal):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True), None


def sdpa_math(q, k, v, scale, causal):
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(q, k, v, scale, causal)


def sdpa_math_reduced(q, k, v, scale, causal):
    """Scores and probabilities in the operands' format, as before PyTorch 2.5."""
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        return sdpa_math(q, k, v, scale, causal)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)


FUNCTIONS = {"triton": triton_attention, "flex_attention": flex, "sdpa": sdpa, "sdpa_math": sdpa_math,
             "sdpa_math_reduced": sdpa_math_reduced, "triton_int8": triton_int8}
RECORDINGS = {  # (input, causal): functions
    ("fp16", True): ["triton", "flex_attention", "sdpa", "sdpa_math", "sdpa_math_reduced", "triton_int8"],
    ("fp16", False): ["triton", "flex_attention"],
    ("bf16", True): ["triton", "flex_attention", "sdpa_math"],
    ("e5m2", True): ["triton"],
}


class Recorder:
    """A dump file; equal inputs are stored once."""

    def __init__(self, path, source, tokens):
        self.out = h5py.File(path, "w", libver="v110")
        with h5py.File(source) as dump:
            group = dump[LAYER]
            self.scale = float(group.attrs.get("sm_scale", dump.attrs["sm_scale"]))
            parts = {"q": HEADS, "k": KV_HEAD, "v": KV_HEAD}
            self.inputs = {n: torch.from_numpy(group[n][:, h, :tokens].astype(np.float16)) for n, h in parts.items()}
            gpu = torch.cuda.get_device_name() if DEVICE == "cuda" else "none"
            self.out.attrs.update(
                schema="qattn-dump/1", layout="HND", is_causal=True, sm_scale=self.scale, gpu=gpu,
                library=f"PyTorch {torch.__version__}, Triton {triton.__version__}", model=dump.attrs["model"],
                licence=dump.attrs["licence"], input=dump.attrs["input"],
                source=f"{LAYER}, query heads 0 and 1, key-value head 0, the first {tokens} tokens")
        self.stored = {}

    def write(self, call, tensors, **attributes):
        group = self.out.create_group(call)
        group.attrs.update(attributes)
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            tensor = tensor.detach().cpu().contiguous()
            key = (str(tensor.dtype), tuple(tensor.shape), tensor.view(torch.uint8).numpy().tobytes())
            if key in self.stored:
                group[name] = self.stored[key]
                continue
            raw = {torch.bfloat16: torch.int16, torch.float8_e5m2: torch.uint8}.get(tensor.dtype)
            array = tensor.view(raw).numpy() if raw else tensor.numpy()
            array = array.view(np.uint16) if raw == torch.int16 else array
            packed = dict(chunks=array.shape, compression="gzip", compression_opts=9, shuffle=True)
            self.stored[key] = group.create_dataset(name, data=array, **(packed if array.size > 1024 else {}))
            if raw:
                group[name].attrs["dtype"] = DTYPE_NAMES[tensor.dtype]

    def record(self, call, function, inputs, note, causal=True, call_attributes=None, **options):
        """Runs one function and stores what went in and what came out; a failure is told and left out."""
        q, k, v = (inputs[n].contiguous().to(DEVICE) for n in "qkv")
        try:
            o, lse = FUNCTIONS[function](q, k, v, self.scale, causal, **options)
            if not torch.isfinite(o.float()).all():
                raise ValueError("o is not finite")
        except Exception as error:  # whatever the library throws: the others are still worth having
            print(f"{call}: left out: {type(error).__name__}: {str(error)[:300]}", flush=True)
            return
        self.write(call, {**inputs, "o": o, "lse": lse}, function=function, note=note, is_causal=causal,
                   **(call_attributes or {}))
        print(f"{call}: recorded, largest |o| {o.float().abs().max().item():.4g}", flush=True)


def record_right(source, target):
    recorder = Recorder(target, source, TOKENS)
    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16, "e5m2": torch.float8_e5m2}
    for (form, causal), functions in RECORDINGS.items():
        inputs = {n: t.to(dtypes[form]) for n, t in recorder.inputs.items()}
        for function in functions:
            options = {"o_dtype": torch.float16} if form == "e5m2" else {}
            recorder.record(f"{form}/{'causal' if causal else 'full'}/{function}", function, inputs,
                            "as it should be", causal, **options)
    recorder.out.close()


def record_broken(source, target):
    recorder = Recorder(target, source, BROKEN_TOKENS)
    two = recorder.inputs
    one = {**two, "q": two["q"][:, :1]}
    short = {n: t[:, :, :64] for n, t in two.items()}
    last = {**one, "q": one["q"][:, :, -64:]}
    recorder.record("top_left", "triton", last, "64 queries, 144 keys: the causal mask is aligned top left",
                    call_attributes={"causal_align": "bottom_right"}, top_left=True)
    recorder.record("dropped_tail", "triton", one, "the last, partial tile of 16 keys is left out", False,
                    mistake="dropped_tail")
    recorder.record("stale_o", "triton", one, "O is not rescaled when the row maximum grows", mistake="stale_o")
    recorder.record("stale_v", "triton", one, "keys 64 to 127 meet V of keys 0 to 63", False, mistake="stale_v")
    recorder.record("wrong_scale", "triton_int8", one, "K of keys 64 to 127 has the scale of keys 0 to 63", False,
                    mistake="wrong_scale")
    recorder.record("swapped_heads", "triton", short, "head 0's output lies in head 1's place and the other way",
                    mistake="swapped_heads")
    recorder.out.close()


if __name__ == "__main__":
    torch.manual_seed(0)
    record_right(sys.argv[1], sys.argv[2])
    record_broken(sys.argv[1], sys.argv[3])
