"""The structures of src/abi.h, field for field. Every field is 8 bytes wide."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_double, c_int64, c_uint64, c_void_p

ABI = 3

FP32, BF16, INT8, Q8_0, Q4_1 = range(5)
KV_FP8, KV_INT8, KV_INT4 = range(16, 19)


class IgLinear(Structure):
    _fields_ = (
        ("weight", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("format", c_int64),
    )


class IgLayer(Structure):
    _fields_ = (
        ("input_norm", c_void_p),
        ("post_norm", c_void_p),
        ("qk_norm", c_void_p),
        ("qkv", IgLinear),
        ("out", IgLinear),
        ("gate_up", IgLinear),
        ("down", IgLinear),
        ("window", c_int64),
    )


class IgModel(Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(IgLayer)),
        ("final_norm", c_void_p),
        ("head", IgLinear),
        ("embedding", c_void_p),
        ("embedding_format", c_int64),
        ("layer_count", c_int64),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("vocab", c_int64),
        ("rounded", c_int64),
        ("norm_eps", c_double),
    )


class IgKv(Structure):
    _fields_ = (("base", c_void_p), ("layer_stride", c_int64), ("block_tokens", c_int64), ("format", c_int64))


class IgStep(Structure):
    _fields_ = (
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("rows", c_void_p),
        ("tables", c_void_p),
        ("logit_rows", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("kv", IgKv),
        ("hidden", c_void_p),
        ("logits", c_void_p),
        ("token_count", c_int64),
        ("row_count", c_int64),
        ("logit_count", c_int64),
        ("first", c_int64),
        ("last", c_int64),
    )


class IgAttention(Structure):
    _fields_ = (
        ("q", c_void_p),
        ("out", c_void_p),
        ("lse", c_void_p),
        ("rows", c_void_p),
        ("tables", c_void_p),
        ("kv", IgKv),
        ("layer", c_int64),
        ("row_count", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("window", c_int64),
        ("rounded", c_int64),
    )


class IgChoice(Structure):
    _fields_ = (
        ("row", c_int64),
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("repetition_penalty", c_double),
        ("top_k", c_int64),
        ("seed", c_uint64),
        ("sample_index", c_int64),
        ("position", c_int64),
        ("history", c_void_p),
        ("history_count", c_int64),
        ("top_ids", c_void_p),
        ("top_logprobs", c_void_p),
        ("top_count", c_int64),
        ("token", c_int64),
        ("logprob", c_double),
        ("margin", c_double),
    )
