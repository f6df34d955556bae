// Weights into panels and back. Plain code: it runs once per model.
#include <cstring>

#include "kernels.h"
#include "layout.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ig {

namespace {

float widen(uint16_t half) {
    const uint32_t bits = uint32_t(half) << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

void pack_fp32(float* to, const float* from, int64_t count, int64_t k) {
    for (int64_t i = 0; i < k; i++)
        for (int64_t o = 0; o < PANEL; o++) to[i * PANEL + o] = o < count ? from[o * k + i] : 0.0f;
}

// Pairs along K of any element that needs no scale beside it.
template <class T>
void pack_pairs(T* to, const T* from, int64_t count, int64_t k) {
    for (int64_t i = 0; i < round_up(k, 2); i++)
        for (int64_t o = 0; o < PANEL; o++)
            to[(i / 2 * PANEL + o) * 2 + i % 2] = o < count && i < k ? from[o * k + i] : T(0);
}

}  // namespace

void unpack_row(const IgLinear& linear, int64_t id, float* out) {
    const int64_t k = linear.k, lane = id % PANEL;
    const uint8_t* panel = (const uint8_t*)linear.weight + id / PANEL * panel_bytes(k, linear.format);
    for (int64_t i = 0; i < k; i++) {
        const int64_t pair = (i / 2 * PANEL + lane) * 2 + i % 2;
        if (linear.format == IG_FP32) out[i] = ((const float*)panel)[i * PANEL + lane];
        else if (linear.format == IG_BF16) out[i] = widen(((const uint16_t*)panel)[pair]);
    }
}

}  // namespace ig

extern "C" {

int64_t ig_packed_bytes(int64_t n, int64_t k, int64_t format) {
    return ig::panels(n) * ig::panel_bytes(k, format);
}

// Outputs 64 i ... of the dense source [n][k] go to panel `panel` + i * `step`. Returns 0, or -1 for a format
// that does not fit.
int64_t ig_pack(void* packed, const void* source, int64_t n, int64_t k, int64_t format, int64_t panel, int64_t step) {
    for (int64_t at = 0; at < n; at += ig::PANEL, panel += step) {
        uint8_t* to = (uint8_t*)packed + panel * ig::panel_bytes(k, format);
        const int64_t count = n - at < ig::PANEL ? n - at : ig::PANEL;
        if (format == IG_FP32) ig::pack_fp32((float*)to, (const float*)source + at * k, count, k);
        else if (format == IG_BF16) ig::pack_pairs((uint16_t*)to, (const uint16_t*)source + at * k, count, k);
        else return -1;
    }
    return 0;
}

int64_t ig_unpack_rows(float* out, const IgLinear* linear, const int32_t* ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) ig::unpack_row(*linear, ids[i], out + i * linear->k);
    return 0;
}

// Large pages spare the address translation that a token's walk over all weights would otherwise miss.
void ig_advise_huge(void* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096, start = (uintptr_t(memory) + page - 1) / page * page;
    const uintptr_t end = (uintptr_t(memory) + uintptr_t(bytes)) / page * page;
    if (end > start) (void)madvise((void*)start, end - start, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}
}
