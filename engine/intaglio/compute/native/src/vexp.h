// exp by our own polynomials, the same on every path of one instruction set: a library's scalar and vector exp
// differ in the last bit, and which one runs would depend on where an element happens to lie.
#pragma once
#include "simd.h"

namespace IG_NS {

// 2^r for r in [-1/2, 1/2], degree 6, fitted for least relative error (2^-28.9); exactly 1 at r = 0.
IG_INLINE V v_exp2_small(V r) {
    V p = v_set(1.5353362e-4f);
    p = v_fma(p, r, v_set(1.33988739e-3f));
    p = v_fma(p, r, v_set(9.61843692e-3f));
    p = v_fma(p, r, v_set(5.55033237e-2f));
    p = v_fma(p, r, v_set(2.40226477e-1f));
    p = v_fma(p, r, v_set(6.93147182e-1f));
    return v_fma(p, r, v_set(1.0f));
}

// 2^x for x <= 0; below 2^-126 the result is 0 and -infinity gives 0, so that no path meets a denormal.
IG_INLINE V v_exp2_negative(V x) {
    V low = v_set(-126.0f);
    V clamped = v_max(low, x);
    V n = v_round(clamped);
    V value = v_scale(v_exp2_small(v_sub(clamped, n)), n);
    return v_below(x, low, v_zero(), value);
}

// e^x, not below e^-87.3; infinity from 89 on.
IG_INLINE V v_exp(V x) {
    V clamped = v_min(v_set(89.5f), v_max(v_set(-87.3f), x));
    V n = v_round(v_mul(clamped, v_set(1.44269504f)));
    // ln 2 in two parts: the first has few bits, so that n times it is exact.
    V r = v_fma(n, v_set(-0.693359375f), clamped);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    V p = v_set(1.38144672e-3f);
    p = v_fma(p, r, v_set(8.36878084e-3f));
    p = v_fma(p, r, v_set(4.16683927e-2f));
    p = v_fma(p, r, v_set(1.66665196e-1f));
    p = v_fma(p, r, v_set(4.99999940e-1f));
    p = v_fma(v_mul(r, r), p, r);
    return v_scale(v_add(p, v_set(1.0f)), n);
}

// x / (1 + e^-x)
IG_INLINE V v_silu(V x) { return v_div(x, v_add(v_set(1.0f), v_exp(v_sub(v_zero(), x)))); }

}  // namespace IG_NS
