// Work on single rows: norms, rotary embedding with storage of keys and values, conversions, SiLU, best token.
#pragma once
#include "kernels.h"
#include "kv.h"
#include "panel.h"

namespace IG_NS {

// Zeros behind `width` up to the activations' stride: they are multiplied with padding of the weights.
template <class T>
IG_INLINE void pad_row(T* y, int64_t width) {
    const int64_t end = ig::act_stride(width);
    for (int64_t i = width; i < end; i++) y[i] = T(0);
}

IG_INLINE void store_act(void* y, int64_t at, V a, int64_t n, bool acts_bf16) {
    if (!acts_bf16) {
        if (n >= W) v_store((float*)y + at, a);
        else v_store_n((float*)y + at, a, n);
        return;
    }
    if (n >= W) {
        v_to_bf16((uint16_t*)y + at, a);
        return;
    }
    uint16_t part[W];
    v_to_bf16(part, a);
    for (int64_t i = 0; i < n; i++) ((uint16_t*)y)[at + i] = part[i];
}

IG_INLINE V load_up_to(const float* p, int64_t n) { return n >= W ? v_load(p) : v_load_n(p, n); }

// 1 / sqrt(mean(x^2) + eps): four interleaved sums in lanes, then halves onto each other.
static float norm_scale(const float* x, int64_t width, float eps) {
    V s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t i = 0;
    for (; i + 4 * W <= width; i += 4 * W)
        for (int j = 0; j < 4; j++) {
            V a = v_load(x + i + j * W);
            s[j] = v_fma(a, a, s[j]);
        }
    for (int j = 0; i < width; i += W, j++) {
        V a = load_up_to(x + i, width - i);
        s[j] = v_fma(a, a, s[j]);
    }
    float sum = v_hsum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
    return 1.0f / __builtin_sqrtf(sum / float(width) + eps);
}

static void norm(const ig::NormJob& job, int64_t row) {
    const float* x = job.x + (job.index ? int64_t(job.index[row]) : row) * job.ldx;
    V scale = v_set(norm_scale(x, job.width, job.eps));
    const int64_t start = row * job.ldy;
    for (int64_t i = 0; i < job.width; i += W) {
        const int64_t n = job.width - i;
        V a = v_mul(v_mul(load_up_to(x + i, n), scale), load_up_to(job.weight + i, n));
        store_act(job.y, start + i, a, n, job.acts_bf16);
    }
    if (job.acts_bf16) pad_row((uint16_t*)job.y + start, job.width);
    else pad_row((float*)job.y + start, job.width);
}

static void convert(const float* x, void* y, int64_t width, bool acts_bf16) {
    for (int64_t i = 0; i < width; i += W) store_act(y, i, load_up_to(x + i, width - i), width - i, acts_bf16);
    if (acts_bf16) pad_row((uint16_t*)y, width);
    else pad_row((float*)y, width);
}

// One head in place: norm if asked, then x cos + swap(x) sin with the halves exchanged.
static void rotate(float* x, const float* cos, const float* sin, const float* weight, float eps, int64_t dim) {
    if (weight) {
        V scale = v_set(norm_scale(x, dim, eps));
        for (int64_t i = 0; i < dim; i += W) {
            const int64_t n = dim - i;
            V a = v_mul(v_mul(load_up_to(x + i, n), scale), load_up_to(weight + i, n));
            if (n >= W) v_store(x + i, a);
            else v_store_n(x + i, a, n);
        }
    }
    const int64_t half = dim / 2;
    for (int64_t i = 0; i < half; i += W) {
        const int64_t n = half - i;
        V a = load_up_to(x + i, n), b = load_up_to(x + half + i, n);
        V c = load_up_to(cos + i, n), s = load_up_to(sin + half + i, n);
        V low = v_sub(v_mul(a, c), v_mul(b, s)), high = v_add(v_mul(b, c), v_mul(a, s));
        if (n >= W) {
            v_store(x + i, low);
            v_store(x + half + i, high);
        } else {
            v_store_n(x + i, low, n);
            v_store_n(x + half + i, high, n);
        }
    }
}

// One head's keys and values at a slot.
static void store_kv(const float* keys, const float* values, const ig::KvView& kv, int64_t slot, int64_t kv_heads,
                     int64_t dim, int64_t h) {
    uint8_t* token = kv.base + slot * ig::kv_token_bytes(kv.format, kv_heads, dim);
    const bool half = kv.format == IG_BF16;
    for (int64_t part = 0; part < 2; part++) {
        const float* x = part ? values : keys;
        if (ig::kv_quantised(kv.format)) {
            kv_encode(x, kv.format, kv_heads, dim, part, h, token);
            continue;
        }
        uint8_t* at = token + (part * kv_heads + h) * ig::kv_head_bytes(kv.format, dim);
        for (int64_t i = 0; i < dim; i += W) store_act(at, i, load_up_to(x + i, dim - i), dim - i, half);
    }
}

static void store(const float* x, const ig::KvView& kv, int64_t slot, int64_t kv_heads, int64_t dim) {
    for (int64_t h = 0; h < kv_heads; h++)
        store_kv(x + h * dim, x + (kv_heads + h) * dim, kv, slot, kv_heads, dim, h);
}

static void rope(const ig::RopeJob& job, const ig::KvView& kv, int64_t token, int64_t slot, int64_t first,
                 int64_t last) {
    const int64_t dim = job.head_dim, group = job.heads / job.kv_heads;
    float* row = job.qkv + token * job.ld;
    float* keys = row + job.heads * dim;
    float* values = keys + job.kv_heads * dim;
    const float* cos = job.cos + job.positions[token] * dim;
    const float* sin = job.sin + job.positions[token] * dim;
    for (int64_t h = first; h < last; h++) {
        for (int64_t g = h * group; g < (h + 1) * group; g++)
            rotate(row + g * dim, cos, sin, job.qk_norm ? job.qk_norm + g * dim : nullptr, job.eps, dim);
        const float* weight = job.qk_norm ? job.qk_norm + (job.heads + h) * dim : nullptr;
        rotate(keys + h * dim, cos, sin, weight, job.eps, dim);
        store_kv(keys + h * dim, values + h * dim, kv, slot, job.kv_heads, dim, h);
    }
}

static void swiglu(const float* gate, const float* up, float* y, int64_t count) {
    for (int64_t i = 0; i < count; i += W) {
        const int64_t n = count - i;
        V s = v_mul(v_silu(load_up_to(gate + i, n)), load_up_to(up + i, n));
        if (n >= W) v_store(y + i, s);
        else v_store_n(y + i, s, n);
    }
}

// Best token (lowest id on a tie, -1 if there is no number), its logit, the second best logit, and the log of the
// sum of exponentials. A NaN anywhere shows in that sum.
static void top(const float* logits, int64_t count, int64_t* best, float* values) {
    constexpr int64_t PIECE = 1024;
    const V none = v_set(-__builtin_inff());
    V first_v = none, second_v = none;  // per lane
    float first = -__builtin_inff();
    int64_t piece = -1;
    for (int64_t start = 0; start < count; start += PIECE) {
        const int64_t end = min_of(start + PIECE, count);
        V high = none;
        for (int64_t i = start; i < end; i += W) {
            V x = i + W <= end ? v_load(logits + i) : v_below(v_lanes(), v_set(float(end - i)), load_up_to(logits + i, end - i), none);
            second_v = v_max(second_v, v_min(first_v, x));
            first_v = v_max(first_v, x);
            high = v_max(high, x);
        }
        const float here = v_hmax(high);
        if (here > first) {
            first = here;
            piece = start;
        }
    }
    int64_t at = piece < 0 ? count : piece;
    while (at < count && !(logits[at] == first)) at++;
    float ones[W], twos[W], second = -__builtin_inff();
    v_store(ones, first_v);
    v_store(twos, second_v);
    for (int lane = 0; lane < W; lane++) {
        const float x = lane == at % W ? twos[lane] : ones[lane];
        second = x > second ? x : second;
    }
    V sum = v_zero();
    const V top_v = v_set(first);
    for (int64_t i = 0; i < count; i += W) {
        V x = v_exp(v_sub(load_up_to(logits + i, count - i), top_v));
        sum = v_add(sum, i + W <= count ? x : v_below(v_lanes(), v_set(float(count - i)), x, v_zero()));
    }
    *best = at < count ? at : -1;
    values[0] = first;
    values[1] = second;
    values[2] = first + __builtin_logf(v_hsum(sum));
}

}  // namespace IG_NS
