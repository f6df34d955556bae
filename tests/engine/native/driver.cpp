// Runs every kernel over awkward sizes in buffers of exactly the right length, for the sanitizers to watch: one
// element too many read or written, or one misaligned or overflowing operation, ends the program.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "abi.h"
#include "kv_layout.h"

namespace {

int failures = 0;

void check(bool good, const char* what) {
    if (good) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    failures++;
}

uint32_t state = 12345;
float noise() {
    state = state * 1664525u + 1013904223u;
    return float(int32_t(state >> 8) - (1 << 23)) / float(1 << 22);
}

// A vector on the heap of its exact length, so that its end is watched.
template <class T>
struct Exact {
    std::unique_ptr<T[]> data;
    int64_t size;
    explicit Exact(int64_t n) : data(new T[size_t(n)]()), size(n) {}
    T* at(int64_t i = 0) { return data.get() + i; }
};

Exact<float> floats(int64_t n) {
    Exact<float> out(n);
    for (int64_t i = 0; i < n; i++) *out.at(i) = noise();
    return out;
}

Exact<uint16_t> halves(int64_t n) {
    Exact<uint16_t> out(n);
    for (int64_t i = 0; i < n; i++) {
        float x = noise();
        uint32_t u;
        __builtin_memcpy(&u, &x, 4);
        *out.at(i) = uint16_t(u >> 16);
    }
    return out;
}

struct Packed {
    Exact<uint8_t> bytes;
    IgLinear linear;
};

// Any codes, with scales that are small fp16 numbers.
void codes(Exact<uint8_t>& source, int64_t format) {
    const int64_t block = format == IG_Q8_0 ? 34 : format == IG_Q4_1 ? 20 : 1;
    for (int64_t i = 0; i < source.size; i++) {
        noise();
        *source.at(i) = uint8_t(state >> 24);
    }
    for (int64_t i = 0; block > 1 && i < source.size; i += block)
        for (int64_t j = 1; j < (format == IG_Q4_1 ? 4 : 2); j += 2) *source.at(i + j) = uint8_t(*source.at(i + j) % 0x30);
}

Packed pack(int64_t n, int64_t k, int64_t format, const float* bias, int64_t parts = 1, const float* scales = nullptr) {
    Packed p{Exact<uint8_t>(parts * ig_packed_bytes(n / parts, k, format)), {}};
    for (int64_t part = 0; part < parts; part++) {
        const int64_t rows = n / parts, blocks = k / 32;
        const int64_t size = format == IG_FP32   ? rows * k * 4
                             : format == IG_BF16 ? rows * k * 2
                             : format == IG_INT8 ? rows * k
                             : format == IG_Q8_0 ? rows * blocks * 34
                                                 : rows * blocks * 20;
        Exact<uint8_t> source(size);
        Exact<float> wide = floats(rows * k);
        Exact<uint16_t> half = halves(rows * k);
        if (format == IG_FP32) memcpy(source.at(), wide.at(), size_t(size));
        else if (format == IG_BF16) memcpy(source.at(), half.at(), size_t(size));
        else codes(source, format);
        check(ig_pack(p.bytes.at(), source.at(), rows, k, format, part, parts) == 0, "pack");
    }
    p.linear = {p.bytes.at(), format == IG_INT8 ? scales : nullptr, bias, n, k, format};
    return p;
}

void linears(IgContext* context) {
    for (int64_t format = IG_FP32; format <= IG_Q4_1; format++)
        for (int64_t n : {1, 63, 64, 130})
            for (int64_t k : {1, 7, 32, 33, 160})
                for (int64_t rows : {1, 2, 5, 6, 7, 49}) {
                    if (format >= IG_Q8_0 && k % 32) continue;
                    Exact<float> bias = floats(n), scales = floats(n), x = floats(rows * k), y(rows * n), one(n);
                    Packed p = pack(n, k, format, bias.at(), 1, scales.at());
                    check(ig_linear(context, &p.linear, x.at(), rows, rows % 2, y.at()) == 0, "linear");
                    check(ig_linear(context, &p.linear, x.at((rows - 1) * k), 1, rows % 2, one.at()) == 0, "one row");
                    for (int64_t i = 0; i < n; i++) check(*one.at(i) == *y.at((rows - 1) * n + i), "row bits");
                    Exact<int32_t> ids(2);
                    *ids.at(1) = int32_t(n - 1);
                    Exact<float> back(2 * k);
                    check(ig_unpack_rows(back.at(), &p.linear, ids.at(), 2) == 0, "unpack");
                }
}

void attention(IgContext* context) {
    for (int64_t format : {int64_t(IG_FP32), int64_t(IG_BF16)})
        for (int64_t dim : {2, 16, 30, 64, 96, 130})
            for (int64_t count : {1, 2, 3, 40, 100})
                for (int64_t before : {0, 1, 62, 63, 70}) {
                    const int64_t kv_heads = 2, heads = 6, size = before % 5 ? 16 : 7, length = before + count;
                    const int64_t blocks = (length + size - 1) / size;
                    // The last block comes last in memory and ends with the last token.
                    Exact<float> wide = floats(format == IG_FP32 ? length * 2 * kv_heads * dim : 1);
                    Exact<uint16_t> half = halves(format == IG_FP32 ? 1 : length * 2 * kv_heads * dim);
                    Exact<int32_t> table(blocks);
                    for (int64_t i = 0; i < blocks; i++) *table.at(i) = int32_t(i);
                    Exact<float> q = floats(count * heads * dim), out(count * heads * dim), lse(count * heads);
                    Exact<IgRow> row(1);
                    *row.at() = {0, count, before, 0, 0};
                    void* base = format == IG_FP32 ? (void*)wide.at() : (void*)half.at();
                    IgAttention job = {q.at(), out.at(), lse.at(), row.at(), table.at(), {base, 0, size, format}, 0, 1,
                                       heads, kv_heads, dim, before % 2 ? 33 : 0, format == IG_BF16};
                    check(ig_attention(context, &job) == 0, "attention");
                    for (int64_t i = 0; i < out.size; i++) check(std::isfinite(*out.at(i)), "attention value");
                }
}

// A quantised store whose last record ends with its memory: written and read back, whole heads and odd ones.
void quantised(IgContext* context) {
    for (int64_t format = IG_KV_FP8; format <= IG_KV_INT4; format++)
        for (int64_t dim : {2, 16, 30, 64, 130})
            for (int64_t count : {1, 40})
                for (int64_t before : {0, 62, 71}) {
                    const int64_t kv_heads = 3, heads = 6, size = 16, length = before + count;
                    const int64_t blocks = (length + size - 1) / size;
                    Exact<uint8_t> store(length * ig::kv_token_bytes(format, kv_heads, dim));
                    Exact<float> x = floats(length * 2 * kv_heads * dim), q = floats(count * heads * dim);
                    Exact<float> out(count * heads * dim), lse(count * heads);
                    Exact<int32_t> table(blocks), slots(length);
                    for (int64_t i = 0; i < blocks; i++) *table.at(i) = int32_t(i);
                    for (int64_t i = 0; i < length; i++) *slots.at(i) = int32_t(i);
                    IgKv kv = {store.at(), 0, size, format};
                    check(ig_kv_store(context, x.at(), slots.at(), length, &kv, 0, kv_heads, dim) == 0, "kv store");
                    Exact<IgRow> row(1);
                    *row.at() = {0, count, before, 0, 0};
                    IgAttention job = {q.at(), out.at(), lse.at(), row.at(), table.at(), kv, 0, 1,
                                       heads, kv_heads, dim, before % 2 ? 33 : 0, dim % 16 == 0};
                    check(ig_attention(context, &job) == 0, "quantised attention");
                    for (int64_t i = 0; i < out.size; i++) check(std::isfinite(*out.at(i)), "quantised value");
                }
}

void rows(IgContext* context) {
    for (int64_t width : {1, 3, 16, 17, 64, 100}) {
        Exact<float> x = floats(3 * width), weight = floats(width), y(3 * width), z(3 * width);
        check(ig_rms_norm(context, x.at(), weight.at(), 1e-5, 3, width, y.at()) == 0, "norm");
        check(ig_swiglu(context, x.at(), y.at(), 3 * width, z.at()) == 0, "swiglu");
        Exact<int64_t> best(3);
        Exact<float> values(9);
        check(ig_top(context, x.at(), 3, width, best.at(), values.at()) == 0, "top");
        check(*best.at() >= 0 && *best.at() < width, "best");
    }
}

// Two layers with a head norm, a bias and odd sizes: a mixed step through a cache, then the same without one.
void forward(IgContext* context, int64_t format) {
    const int64_t hidden = 44, heads = 4, kv_heads = 2, dim = 10, inner = 70, vocab = 101, layers = 2, size = 4;
    const int64_t q = heads * dim, kv = kv_heads * dim;
    Exact<float> norm = floats(hidden), qk = floats((heads + kv_heads) * dim), bias = floats(q + 2 * kv);
    Packed qkv = pack(q + 2 * kv, hidden, format, bias.at()), out = pack(hidden, q, format, nullptr);
    Packed up = pack(2 * inner, hidden, format, nullptr, 2), down = pack(hidden, inner, format, nullptr);
    Packed head = pack(vocab, hidden, format, nullptr);
    IgLayer layer = {norm.at(), norm.at(), qk.at(), qkv.linear, out.linear, up.linear, down.linear, 0};
    std::vector<IgLayer> all(size_t(layers), layer);
    all[1].window = 5;
    IgModel model = {all.data(), norm.at(), head.linear, nullptr, 0, layers, hidden, inner, heads, kv_heads, dim, vocab,
                     1, 1e-5};
    const int64_t slots = 8 * size;
    Exact<float> cos = floats(32 * dim), sin = floats(32 * dim);
    Exact<float> store(layers * slots * 2 * kv);
    Exact<int32_t> tables(8), logit_rows(3);
    const int32_t order[8] = {5, 0, 3, 7, 1, 6, 2, 4};
    for (int64_t i = 0; i < 8; i++) *tables.at(i) = order[i];
    Exact<float> kept(vocab);
    for (bool cached : {true, false}) {
        const int64_t total = 13 + 2;
        Exact<int32_t> tokens(total), positions(total);
        for (int64_t i = 0; i < total; i++) {
            *tokens.at(i) = int32_t(i * 37 % vocab);
            *positions.at(i) = int32_t(i < 13 ? i : i - 13);
        }
        Exact<IgRow> rows(2);
        *rows.at(0) = {0, 13, 0, 0, 0};
        *rows.at(1) = {13, 2, 0, cached ? 4 : 0, cached ? 0 : 13};
        *logit_rows.at(0) = 0;
        *logit_rows.at(1) = 12;
        *logit_rows.at(2) = 14;
        Exact<float> states(total * hidden), logits(3 * vocab);
        IgKv cache = {cached ? store.at() : nullptr, slots * 2 * kv, cached ? size : int64_t(1) << 40, IG_FP32};
        Exact<int32_t> none(1);
        IgStep step = {tokens.at(), positions.at(), rows.at(), cached ? tables.at() : none.at(), logit_rows.at(),
                       cos.at(), sin.at(), cache, states.at(), logits.at(), total, 2, 3, 0, layers};
        check(ig_forward(context, &model, &step) == 0, "forward");
        for (int64_t i = 0; i < vocab; i++) {
            check(std::isfinite(*logits.at(vocab + i)), "logit");
            if (cached) *kept.at(i) = *logits.at(vocab + i);
            else check(*kept.at(i) == *logits.at(vocab + i), "cached and uncached bits");
        }
    }
}

}  // namespace

int main() {
    int64_t ran = 0;
    for (int64_t i = 0; i < ig_isa_count(); i++) {
        if (!ig_isa_usable(i)) continue;
        for (int64_t threads : {1, 3}) {
            IgContext* context = ig_open(ig_isa_name(i), threads, 10);
            check(context != nullptr, "open");
            if (!context) continue;
            linears(context);
            attention(context);
            quantised(context);
            rows(context);
            forward(context, IG_FP32);
            forward(context, IG_BF16);
            ig_close(context);
        }
        std::printf("%s\n", ig_isa_name(i));
        ran++;
    }
    check(ig_open("abacus", 1, 0) == nullptr, "an unknown instruction set");
    return failures || !ran ? 1 : 0;
}
