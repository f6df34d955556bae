// How packed weights lie in memory. Outputs stand in the vector lanes and K is walked in order, so an output's
// sum is the same sequence of additions whatever rows are computed beside it, on every thread count.
//
// A panel holds PANEL outputs over the whole of K, contiguous, K outermost:
//   fp32  [k][64]            bf16 and int8  [k / 2][64][2], an odd K is padded with a zero
//   q8_0 and q4_1: by blocks of 32 inputs, see quant.h
// The last panel is padded with zero outputs.
#pragma once
#include <cstdint>

#include "abi.h"

namespace ig {

constexpr int64_t PANEL = 64;
// Sums are taken over blocks of at most this many inputs and the blocks' sums then added in order. Short blocks
// shorten the chain of roundings: fp32 is then at least as exact as a library's own order. A bf16 product's inputs
// are rounded far more coarsely than its sum, so there the block only keeps a panel's part in the near cache.
constexpr int64_t K_BLOCK_FP32 = 128;
constexpr int64_t K_BLOCK_PAIRS = 512;
// Where the sum does not depend on it, with few rows: while such a block is multiplied the next one comes from memory.
constexpr int64_t K_BLOCK_FRESH = 96;
// Keys are visited in tiles at fixed absolute positions, so that a query's additions depend on its own
// position alone.
constexpr int64_t KEY_TILE = 64;
// Query rows (tokens times heads of one group) that share a packed key tile.
constexpr int64_t QUERY_ROWS = 96;
// Rows whose partial sums stay in the scratch of a thread while K blocks pass.
constexpr int64_t ROW_BLOCK = 48;

// Activations of a run of rows that a core's second cache holds beside a panel or two.
constexpr int64_t NEAR_BYTES = 640 << 10;

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

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Length of a K block, a function of K and the format alone. Whole quantisation blocks (32) lie in each.
constexpr int64_t k_block(int64_t k, int64_t format) {
    return format == IG_FP32 ? least(K_BLOCK_FP32, round_up((k + 3) / 4, 8)) : K_BLOCK_PAIRS;
}

// Distance between rows of activations, in elements: whole cache lines, the padding zero.
constexpr int64_t act_stride(int64_t width) { return round_up(width, 32); }

}  // namespace ig
