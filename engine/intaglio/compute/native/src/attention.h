// Paged attention with an online softmax over key tiles at fixed absolute positions.
//
// A tile's keys are packed with the keys in the lanes and its values with the head's dimensions in the lanes, so
// that both products are the panel loop of the linears. One task is some kv heads of one row for a run of tokens;
// a head's query rows are tokens times the heads that share it. Prefill and decode differ only in how many rows a
// task has: each row's state sees the same tiles in the same order, and a tile or key that it cannot see adds exact
// zeros. Nothing outside the keys that some query of the task sees is ever read.
#pragma once
#include "kernels.h"
#include "strip.h"
#include "tile.h"

namespace IG_NS {

using ig::AttentionJob;

// One task. `heads` of its kv heads from `head` on share every tile that is found.
template <class Kernel>
class Attend {
  public:
    Attend(const AttentionJob& job, const IgRow& row, int64_t head, int64_t heads, int64_t first, int64_t count,
           uint8_t* scratch)
        : job_(job), row_(row), head_(head), heads_(heads), first_(first), group_(job.heads / job.kv_heads),
          dim_(job.head_dim), rows_(count * group_), wide_(ig::round_up(dim_, PANEL)), ld_(ig::act_stride(dim_)),
          position_(row.context + first), final_(position_ + count - 1),
          low_(job.window > 0 ? max_of(0, position_ - job.window + 1) : 0),
          scale_(1.44269504f / __builtin_sqrtf(float(dim_))) {
        carve(scratch);
#if defined(IG_TARGET_AVX512BF16)
        few_ = DOT && rows_ <= FEW_QUERIES && job.kv.format == IG_BF16 && dim_ % 32 == 0;
#endif
    }

    void run() {
        for (int64_t h = 0; h < heads_; h++) load_queries(h);
        int now = 0;
        const int64_t begin = low_ / KEY_TILE * KEY_TILE;
        find_keys(job_, row_, begin, low_, final_, sources_[now]);
        for (int64_t start = begin; start <= final_; start += KEY_TILE, now ^= 1) {
            find_keys(job_, row_, start + KEY_TILE, low_, final_, sources_[now ^ 1]);
            for (int64_t h = 0; h < heads_; h++) visit(start, h, sources_[now], sources_[now ^ 1]);
        }
        for (int64_t h = 0; h < heads_; h++) finish(h);
    }

  private:
    static constexpr bool DOT = sizeof(typename Kernel::Act) == 2;
    using Act = typename Kernel::Act;

    void carve(uint8_t* scratch) {
        const int64_t all = ig::round_up(rows_ * heads_, 16), one = ig::round_up(rows_, 16);
        auto take = [&](int64_t bytes) {
            uint8_t* at = scratch;
            scratch += ig::round_up(bytes, 64);
            return at;
        };
        top_ = (float*)take(all * 4);
        total_ = (float*)take(all * W * 4);
        out_ = (float*)take(all * wide_ * 4);
        q_ = (Act*)take(all * ld_ * 4);
        shrink_ = (float*)take(one * 4);
        scores_ = (float*)take(one * PANEL * 4);
        part_ = (float*)take(one * PANEL * 4);
        p_ = (Act*)take(one * KEY_TILE * 4);
        keys_ = take(KEY_TILE * ld_ * 4);
        values_ = take(KEY_TILE * wide_ * 4);
        decoded_ = take(KEY_TILE * dim_ * 4);
    }

    // Queries of a head as rows [token][head of the group] of activations, and an empty state.
    void load_queries(int64_t h) {
        for (int64_t r = 0; r < rows_; r++) {
            const int64_t token = row_.start + first_ + r / group_, head = (head_ + h) * group_ + r % group_;
            const float* q = job_.q + token * job_.ldq + head * dim_;
            for (int64_t i = 0; i < dim_; i += W)
                store_act(q_, (h * rows_ + r) * ld_ + i, load_up_to(q + i, dim_ - i), dim_ - i, DOT);
            top_[h * rows_ + r] = -1e30f;
        }
        memset(total_ + h * rows_ * W, 0, size_t(rows_ * W * 4));
        memset(out_ + h * rows_ * wide_, 0, size_t(rows_ * wide_ * 4));
    }

    // Which of a tile's keys [from, to) row r sees.
    int64_t from(int64_t r, int64_t start) const {
        return job_.window > 0 ? max_of(0, position_ + r / group_ - job_.window + 1 - start) : 0;
    }
    int64_t to(int64_t r, int64_t start) const {
        return max_of(0, min_of(position_ + r / group_ - start + 1, KEY_TILE));
    }

    // One tile for one head.
    void visit(int64_t start, int64_t h, const uint8_t* const* sources, const uint8_t* const* next) {
        const int64_t last = min_of(final_ - start, KEY_TILE - 1), keys = min_of(KEY_TILE, ig::round_up(last + 1, 2));
        const int64_t form = job_.kv.format, bytes = ig::kv_head_bytes(form, dim_), step = job_.kv_heads * bytes;
        const int64_t at = ig::kv_parameter_bytes(form, job_.kv_heads) + (head_ + h) * bytes;
        const bool whole = heads_ == job_.kv_heads, coded = ig::kv_quantised(form);
        const int64_t token = ig::kv_token_bytes(form, job_.kv_heads, dim_);
        if (whole && h == 0 && start <= low_) stream(sources, token);
        const bool strips = job_.kv.block_tokens % 16 == 0;  // aligned runs of 16 tokens lie in one block
        Ahead ahead = whole ? Ahead(next, 0, 0, token, 1, KEY_TILE * h / heads_, KEY_TILE * (h + 1) / heads_, strips ? 16 : 1)
                            : Ahead(next, at, step, bytes, 2, 0, KEY_TILE);
#if defined(IG_TARGET_AVX512BF16)
        if constexpr (DOT)
            if (few_) return visit_few(start, h, sources, at, step, strips ? token : 0, keys, ahead);
#endif
        if (coded) {
            decode(sources, h, 0);
            pack_keys(plain_, 0, dim_, DOT, DOT, ahead, keys_);
            decode(sources, h, 1);
            pack_values(plain_, 0, keys, dim_, DOT, DOT, ahead, values_);
        } else {
            pack_keys(sources, at, dim_, form == IG_BF16, DOT, ahead, keys_);
            pack_values(sources, at + step, keys, dim_, form == IG_BF16, DOT, ahead, values_);
        }
        times_panel<Kernel>(q_ + h * rows_ * ld_, ld_, rows_, keys_, int((keys + W - 1) / W), 0, dim_, scores_, true);
        weigh(start, h);
        for (int64_t d = 0; d < dim_; d += PANEL) {
            const int vectors = int((min_of(PANEL, dim_ - d) + W - 1) / W);
            times_panel<Kernel>(p_, KEY_TILE, rows_, values_ + d * KEY_TILE * (DOT ? 2 : 4), vectors, 0, keys, part_,
                                true);
            for (int64_t r = 0; r < rows_; r++)
                for (int64_t i = 0; i < vectors * W; i += W) {
                    float* sum = out_ + (h * rows_ + r) * wide_ + d + i;
                    v_store(sum, v_add(v_load(sum), v_load(part_ + r * PANEL + i)));
                }
        }
    }

#if defined(IG_TARGET_AVX512BF16)
    // The same for few rows of queries: keys from `at` on in each token, values `step` behind them.
    void visit_few(int64_t start, int64_t h, const uint8_t* const* sources, int64_t at, int64_t step, int64_t token,
                   int64_t keys, Ahead& ahead) {
        const Few& by = few(rows_);
        const int64_t count = (keys + STRIP - 1) / STRIP, bytes = dim_ * 2;
        Strip strips[STRIPS];
        for (int64_t g = 0; g < count; g++) strips[g] = strip_of(sources, g, at, bytes, token, keys_);
        by.scores(q_ + h * rows_ * ld_, ld_, strips, count, dim_, ahead, scores_);
        weigh(start, h);
        for (int64_t g = 0; g < count; g++) strips[g] = strip_of(sources, g, at + step, bytes, token, values_);
        by.sums(p_, strips, keys, dim_, ahead, out_ + h * rows_ * wide_, wide_);
    }
#endif

    // A head's keys (part 0) or values of a tile out of their records, as activations.
    void decode(const uint8_t* const* sources, int64_t h, int64_t part) {
        kv_decode<DOT>(sources, KEY_TILE, job_.kv.format, job_.kv_heads, dim_, part, head_ + h, decoded_, plain_);
    }

    // Scores to weights; what was summed before shrinks to the new maximum.
    void weigh(int64_t start, int64_t h) {
        float* top = top_ + h * rows_;
        for (int64_t r = 0; r < rows_; r++) {
            const int64_t a = from(r, start), b = to(r, start);
            const float high = b > a ? highest(scores_ + r * PANEL, a, b) * scale_ : -1e30f;
            const float now = top[r] > high ? top[r] : high;
            shrink_[r] = top[r] - now;
            top[r] = now;
        }
        for (int64_t r = 0; r < rows_; r += W) v_store(shrink_ + r, v_exp2_negative(v_load(shrink_ + r)));
        for (int64_t r = 0; r < rows_; r++) {
            float* total = total_ + (h * rows_ + r) * W;
            if (shrink_[r] != 1.0f) {
                const V by = v_set(shrink_[r]);
                float* out = out_ + (h * rows_ + r) * wide_;
                v_store(total, v_mul(v_load(total), by));
                for (int64_t i = 0; i < wide_; i += W) v_store(out + i, v_mul(v_load(out + i), by));
            }
            weights(scores_ + r * PANEL, from(r, start), to(r, start), scale_, top[r], total, p_ + r * KEY_TILE, DOT);
        }
    }

    void finish(int64_t h) {
        for (int64_t r = 0; r < rows_; r++) {
            const int64_t token = row_.start + first_ + r / group_, head = (head_ + h) * group_ + r % group_;
            const float total = v_hsum(v_load(total_ + (h * rows_ + r) * W));
            const V by = v_set(total);
            for (int64_t i = 0; i < dim_; i += W) {
                // Adding +0 makes a zero's sign the same whether or not keys behind the query lay in its tile.
                V a = v_add(v_div(v_load(out_ + (h * rows_ + r) * wide_ + i), by), v_zero());
                store_act(job_.out, token * job_.ldo + head * dim_ + i, a, dim_ - i, job_.acts_bf16);
            }
            if (job_.lse)
                job_.lse[token * job_.heads + head] = (top_[h * rows_ + r] + __builtin_log2f(total)) * 0.693147181f;
        }
    }

    const AttentionJob& job_;
    const IgRow& row_;
    const int64_t head_, heads_, first_, group_, dim_, rows_, wide_, ld_, position_, final_, low_;
    const float scale_;
    bool few_ = false;
    float *top_, *total_, *out_, *shrink_, *scores_, *part_;  // total: sums stay in lanes [rows][W] until the end
    Act *q_, *p_;
    uint8_t *keys_, *values_, *decoded_;
    const uint8_t* plain_[KEY_TILE];
    const uint8_t* sources_[2][KEY_TILE];  // this tile's tokens and the next one's
};

static void attention(const AttentionJob& job, const IgRow& row, int64_t head, int64_t heads, int64_t first,
                      int64_t count, uint8_t* scratch) {
#if defined(IG_TARGET_AVX512BF16)
    if (job.rounded && job.kv.format != IG_FP32)
        return Attend<Bf16Dot>(job, row, head, heads, first, count, scratch).run();
#endif
    Attend<Fp32>(job, row, head, heads, first, count, scratch).run();
}

}  // namespace IG_NS
