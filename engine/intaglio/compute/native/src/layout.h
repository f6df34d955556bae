// How packed weights lie in memory. Outputs stand in the vector lanes and K is walked in order, so an output's
// sum is the same sequence of additions whatever rows are computed beside it, on every thread count.
//
// A panel holds PANEL outputs over the whole of K, contiguous, K outermost:
//   fp32  [k][64]            bf16  [k / 2][64][2], an odd K is padded with a zero
// The last panel is padded with zero outputs.
#pragma once
#include <cstdint>

#include "abi.h"

namespace ig {

constexpr int64_t PANEL = 64;
// Sums are taken over blocks of this many inputs and the blocks' sums then added in order: it shortens the
// chain of roundings, and a block of a panel stays in the nearest cache while many rows pass over it.
constexpr int64_t K_BLOCK = 512;
// Keys are visited in tiles at fixed absolute positions, so that a query's additions depend on its own
// position alone.
constexpr int64_t KEY_TILE = 64;
// Query rows (tokens times heads of one group) that share a packed key tile.
constexpr int64_t QUERY_ROWS = 96;
// Rows whose partial sums stay in the scratch of a thread while K blocks pass.
constexpr int64_t ROW_BLOCK = 48;

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr int64_t panels(int64_t n) { return (n + PANEL - 1) / PANEL; }

// Bytes of one panel over all of K.
constexpr int64_t panel_bytes(int64_t k, int64_t format) {
    return format == IG_FP32   ? k * PANEL * 4
           : format == IG_BF16 ? round_up(k, 2) * PANEL * 2
           : format == IG_INT8 ? round_up(k, 2) * PANEL
           : format == IG_Q8_0 ? (k / 32) * (PANEL * 32 + PANEL * 2)
           : format == IG_Q4_1 ? (k / 32) * (PANEL * 16 + PANEL * 4)
                               : 0;
}

// Length of a K block: K in equal even parts of at most K_BLOCK, whole quantisation blocks (32) in each.
constexpr int64_t k_block(int64_t k) {
    int64_t parts = (k + K_BLOCK - 1) / K_BLOCK;
    return round_up((k + parts - 1) / parts, 32);
}

// Distance between rows of activations, in elements: whole cache lines, the padding zero.
constexpr int64_t act_stride(int64_t width) { return round_up(width, 32); }

}  // namespace ig
