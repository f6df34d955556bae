// Where a token's keys and values lie in a store, for every format. A dense token is [2][kv_heads][head_dim] numbers;
// a quantised one is a record of bytes: parameters [2][kv_heads] of four bytes, codes [2][kv_heads], padded to words
// of four (the same record as intaglio/state/kv_format.py).
#pragma once
#include <cstdint>

#include "abi.h"

namespace ig {

constexpr bool kv_quantised(int64_t format) { return format >= IG_KV_FP8; }

// Bytes of one head's numbers or codes.
constexpr int64_t kv_head_bytes(int64_t format, int64_t dim) {
    return format == IG_FP32 ? dim * 4 : format == IG_BF16 ? dim * 2 : format == IG_KV_INT4 ? (dim + 1) / 2 : dim;
}

constexpr int64_t kv_parameter_bytes(int64_t format, int64_t kv_heads) {
    return kv_quantised(format) ? 2 * kv_heads * 4 : 0;
}

constexpr int64_t kv_token_bytes(int64_t format, int64_t kv_heads, int64_t dim) {
    const int64_t plain = kv_parameter_bytes(format, kv_heads) + 2 * kv_heads * kv_head_bytes(format, dim);
    return kv_quantised(format) ? (plain + 3) / 4 * 4 : plain;
}

// Bytes of the unit that strides of a store are counted in.
constexpr int64_t kv_unit(int64_t format) { return format == IG_FP32 ? 4 : format == IG_BF16 ? 2 : 1; }

}  // namespace ig
