// Weights into panels and back. Plain code: it runs once per model.
#include <cstring>

#include "kernels.h"
#include "layout.h"

#if defined(__linux__)
#include <malloc.h>
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

float from_fp16(uint16_t half) {
    const uint32_t body = uint32_t(half & 0x7fff) << 13, sign = uint32_t(half & 0x8000) << 16;
    float size;
    memcpy(&size, &body, 4);
    size *= 0x1p112f;
    uint32_t bits;
    memcpy(&bits, &size, 4);
    bits |= sign;
    memcpy(&size, &bits, 4);
    return size;
}

// Blocks as GGUF has them, row after row: q8_0 is fp16 d and 32 signed codes.
void pack_q8_0(uint8_t* to, const uint8_t* from, int64_t count, int64_t k) {
    const int64_t blocks = k / 32;
    for (int64_t b = 0; b < blocks; b++, to += 34 * PANEL)
        for (int64_t o = 0; o < PANEL; o++) {
            const uint8_t* block = o < count ? from + (o * blocks + b) * 34 : nullptr;
            for (int64_t i = 0; i < 32; i++) to[(i / 2 * PANEL + o) * 2 + i % 2] = block ? block[2 + i] : 0;
            for (int64_t i = 0; i < 2; i++) to[32 * PANEL + o * 2 + i] = block ? block[i] : 0;
        }
}

// q4_1 is fp16 d, fp16 m and 16 bytes whose low halves are codes 0 to 15 and whose high halves are 16 to 31.
void pack_q4_1(uint8_t* to, const uint8_t* from, int64_t count, int64_t k) {
    const int64_t blocks = k / 32;
    for (int64_t b = 0; b < blocks; b++, to += 20 * PANEL)
        for (int64_t o = 0; o < PANEL; o++) {
            const uint8_t* block = o < count ? from + (o * blocks + b) * 20 : nullptr;
            uint32_t units[4] = {0, 0, 0, 0};
            for (int i = 0; i < 32 && block; i++) {
                const uint32_t code = i < 16 ? block[4 + i] & 15u : block[4 + i - 16] >> 4;
                units[i / 8] |= code << (i % 8 / 2 * 4 + i % 2 * 16);
            }
            for (int g = 0; g < 4; g++) memcpy(to + (g * PANEL + o) * 4, &units[g], 4);
            for (int64_t i = 0; i < 2; i++) {
                to[16 * PANEL + o * 2 + i] = block ? block[i] : 0;
                to[18 * PANEL + o * 2 + i] = block ? block[2 + i] : 0;
            }
        }
}

uint16_t half_at(const uint8_t* p) {
    uint16_t half;
    memcpy(&half, p, 2);
    return half;
}

void unpack_quantised(const uint8_t* panel, int64_t k, int64_t lane, bool four_bits, float* out) {
    for (int64_t i = 0; i < k; i++) {
        const int64_t at = i % 32;
        const uint8_t* block = panel + i / 32 * (four_bits ? 20 : 34) * PANEL;
        if (!four_bits) {
            const int8_t code = int8_t(block[(at / 2 * PANEL + lane) * 2 + at % 2]);
            out[i] = from_fp16(half_at(block + 32 * PANEL + lane * 2)) * float(code);
            continue;
        }
        uint32_t unit;
        memcpy(&unit, block + (at / 8 * PANEL + lane) * 4, 4);
        const float code = float(unit >> (at % 8 / 2 * 4 + at % 2 * 16) & 15u);
        out[i] = from_fp16(half_at(block + 16 * PANEL + lane * 2)) * code +
                 from_fp16(half_at(block + 18 * PANEL + lane * 2));
    }
}

}  // namespace

void unpack_row(const IgLinear& linear, int64_t id, float* out) {
    const int64_t k = linear.k, lane = id % PANEL;
    const uint8_t* panel = (const uint8_t*)linear.weight + id / PANEL * panel_bytes(k, linear.format);
    if (linear.format == IG_Q8_0 || linear.format == IG_Q4_1)
        return unpack_quantised(panel, k, lane, linear.format == IG_Q4_1, out);
    for (int64_t i = 0; i < k; i++) {
        const int64_t pair = (i / 2 * PANEL + lane) * 2 + i % 2;
        if (linear.format == IG_FP32) out[i] = ((const float*)panel)[i * PANEL + lane];
        else if (linear.format == IG_BF16) out[i] = widen(((const uint16_t*)panel)[pair]);
        else out[i] = linear.scales[id] * float(((const int8_t*)panel)[pair]);
    }
}

}  // namespace ig

extern "C" {

int64_t ig_packed_bytes(int64_t n, int64_t k, int64_t format) {
    return ig::panels(n) * ig::panel_bytes(k, format);
}

// Outputs 64 i ... of the source go to panel `panel` + i * `step`. The source is dense [n][k] in the format's own
// element, or rows of GGUF blocks. Returns 0, or -1 for a format or K that does not fit.
int64_t ig_pack(void* packed, const void* source, int64_t n, int64_t k, int64_t format, int64_t panel, int64_t step) {
    if ((format == IG_Q8_0 || format == IG_Q4_1) && k % 32) return -1;
    for (int64_t at = 0; at < n; at += ig::PANEL, panel += step) {
        uint8_t* to = (uint8_t*)packed + panel * ig::panel_bytes(k, format);
        const int64_t count = n - at < ig::PANEL ? n - at : ig::PANEL;
        const auto* bytes = (const uint8_t*)source;
        switch (format) {
            case IG_FP32: ig::pack_fp32((float*)to, (const float*)source + at * k, count, k); break;
            case IG_BF16: ig::pack_pairs((uint16_t*)to, (const uint16_t*)source + at * k, count, k); break;
            case IG_INT8: ig::pack_pairs((int8_t*)to, (const int8_t*)source + at * k, count, k); break;
            case IG_Q8_0: ig::pack_q8_0(to, bytes + at * (k / 32) * 34, count, k); break;
            case IG_Q4_1: ig::pack_q4_1(to, bytes + at * (k / 32) * 20, count, k); break;
            default: return -1;
        }
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

// Give freed memory back to the system: what loading has used would else stay resident beside the model.
void ig_trim(void) {
#if defined(__GLIBC__)
    (void)malloc_trim(0);
#endif
}
}
