// Linears with what follows them: bias, residual, SiLU of the gate times up. One chunk is a panel of outputs
// (gate and up panel for SwiGlu) times a run of rows; chunks share nothing, so any thread may take any of them.
#pragma once
#include "kernels.h"
#include "panel.h"
#include "quant.h"

namespace IG_NS {

using ig::Epilogue;
using ig::LinearJob;
using ig::ROW_BLOCK;

template <class Kernel>
static void panel_sums(const LinearJob& job, int64_t panel, int64_t row, int64_t rows, float* c) {
    const IgLinear& lin = job.linear;
    const uint8_t* w = (const uint8_t*)lin.weight + panel * ig::panel_bytes(lin.k, lin.format);
    const auto* x = (const typename Kernel::Act*)job.x + row * job.ldx;
    const int64_t k = ig::round_up(lin.k, 2);
    const int64_t whole = lin.format == IG_FP32 ? lin.k : k;
    const bool fresh = Kernel::lines(2) && rows > 2 && job.rows <= FEW_ROWS;
    const int64_t step = fresh && Kernel::CHAINED && rows > Kernel::ROWS ? ig::K_BLOCK_FRESH : ig::k_block(lin.k, lin.format);
    for (int64_t at = 0; at < whole; at += step) {
        const int64_t count = min_of(step, whole - at);
        if (fresh) times_fresh_panel<Kernel>(x + at, job.ldx, rows, w, at, count, c, at == 0, w + Kernel::lines(at + count) * PANEL * 4);
        else times_panel<Kernel>(x + at, job.ldx, rows, w, VP, at, count, c, at == 0);
    }
}

static void sums(const LinearJob& job, int64_t panel, int64_t row, int64_t rows, float* c) {
#if defined(IG_TARGET_AVX512BF16)
    if (job.acts_bf16) switch (job.linear.format) {
            case IG_BF16: return panel_sums<Bf16Dot>(job, panel, row, rows, c);
            case IG_INT8: return panel_sums<Int8Dot>(job, panel, row, rows, c);
            case IG_Q8_0: return panel_sums<Q8Dot>(job, panel, row, rows, c);
            case IG_Q4_1: return panel_sums<Q4Dot>(job, panel, row, rows, c);
            default: return;
        }
#endif
    switch (job.linear.format) {
        case IG_FP32: return panel_sums<Fp32>(job, panel, row, rows, c);
        case IG_BF16: return panel_sums<Bf16Wide>(job, panel, row, rows, c);
        case IG_INT8: return panel_sums<Int8Wide>(job, panel, row, rows, c);
        case IG_Q8_0: return panel_sums<Q8Wide>(job, panel, row, rows, c);
        case IG_Q4_1: return panel_sums<Q4Wide>(job, panel, row, rows, c);
        default: return;
    }
}

// Scales and biases of the outputs from `at` on, where there are any, onto finished sums.
static void finish_sums(const IgLinear& lin, int64_t at, int64_t count, int64_t rows, float* c) {
    if (lin.scales)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < count; i++) c[r * PANEL + i] *= lin.scales[at + i];
    if (lin.bias)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < count; i++) c[r * PANEL + i] += lin.bias[at + i];
}

template <bool ADD>
static void write_rows(const float* c, float* y, int64_t ldy, int64_t rows, int64_t count) {
    for (int64_t r = 0; r < rows; r++, c += PANEL, y += ldy) {
        int64_t i = 0;
        for (; i + W <= count; i += W)
            v_store(y + i, ADD ? v_add(v_load(y + i), v_load(c + i)) : v_load(c + i));
        if (i < count) {
            V s = v_load(c + i);
            v_store_n(y + i, ADD ? v_add(v_load_n(y + i, count - i), s) : s, count - i);
        }
    }
}

// SiLU(gate) * up as activations; `count` outputs of the panel exist.
static void write_swiglu(const float* gate, const float* up, const LinearJob& job, int64_t row, int64_t rows,
                         int64_t at, int64_t count) {
    for (int64_t r = 0; r < rows; r++, gate += PANEL, up += PANEL) {
        for (int64_t i = 0; i < count; i += W) {
            V s = v_mul(v_silu(v_load(gate + i)), v_load(up + i));
            const int64_t out = (row + r) * job.ldy + at + i;
            if (i + W <= count) {
                if (job.acts_bf16) v_to_bf16((uint16_t*)job.y + out, s);
                else v_store((float*)job.y + out, s);
                continue;
            }
            float part[W];
            v_store(part, s);
            for (int64_t j = 0; j < count - i; j++) {
                if (job.acts_bf16) ((uint16_t*)job.y)[out + j] = to_bf16(part[j]);
                else ((float*)job.y)[out + j] = part[j];
            }
        }
    }
}

static void linear(const LinearJob& job, int64_t chunk, uint8_t* scratch) {
    const IgLinear& lin = job.linear;
    const int64_t groups = job.epilogue == Epilogue::SwiGlu ? ig::panels(lin.n / 2) : ig::panels(lin.n);
    // All panels pass one run of rows before the next.
    const int64_t group = chunk % groups, first = chunk / groups * job.rows_per_chunk;
    const int64_t last = min_of(first + job.rows_per_chunk, job.rows);
    float* c = (float*)scratch;
    for (int64_t row = first; row < last; row += ROW_BLOCK) {
        const int64_t rows = min_of(ROW_BLOCK, last - row);
        if (job.epilogue == Epilogue::SwiGlu) {
            // Gate and up panels alternate; lin.n counts both.
            float* up = c + ROW_BLOCK * PANEL;
            const int64_t half = lin.n / 2, at = group * PANEL, count = min_of(PANEL, half - at);
            sums(job, 2 * group, row, rows, c);
            sums(job, 2 * group + 1, row, rows, up);
            finish_sums(lin, at, count, rows, c);
            finish_sums(lin, half + at, count, rows, up);
            write_swiglu(c, up, job, row, rows, at, count);
            continue;
        }
        const int64_t at = group * PANEL, count = min_of(PANEL, lin.n - at);
        sums(job, group, row, rows, c);
        finish_sums(lin, at, count, rows, c);
        float* y = (float*)job.y + row * job.ldy + at;
        if (job.epilogue == Epilogue::Add) write_rows<true>(c, y, job.ldy, rows, count);
        else write_rows<false>(c, y, job.ldy, rows, count);
    }
}

}  // namespace IG_NS
