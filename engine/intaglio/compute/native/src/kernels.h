// What one instruction set offers: a table of functions, each compiled for it in its own translation unit.
#pragma once
#include <cstdint>
#include <vector>

#include "abi.h"

namespace ig {

enum class Epilogue : int64_t { Store, Add, SwiGlu };

// A linear over `rows` activations, cut into chunks of one panel (a gate and an up panel for SwiGlu) times
// `rows_per_chunk` rows. x is bf16 or fp32 as the table's `acts_bf16` says. Store and Add write fp32 y [rows][ldy];
// SwiGlu writes activations [rows][ldy].
struct LinearJob {
    IgLinear linear;
    const void* x;
    int64_t ldx, rows, rows_per_chunk;
    Epilogue epilogue;
    void* y;
    int64_t ldy;
    bool acts_bf16;
};

// fp32 rows times a norm weight to activations.
struct NormJob {
    const float* x;
    const float* weight;
    void* y;
    const int32_t* index;  // which rows of x, or null for all in order
    int64_t ldx, ldy, width;
    float eps;
    bool acts_bf16;
};

// Rotary embedding (and head norm) of the fresh q and k of a token and storage of its k and v.
struct RopeJob {
    float* qkv;
    int64_t ld;
    const int32_t* positions;
    const float *cos, *sin, *qk_norm;
    float eps;
    int64_t heads, kv_heads, head_dim;
};

// Keys and values of one layer.
struct KvView {
    uint8_t* base;
    int64_t block_tokens, format;
};

struct AttentionJob {
    const float* q;
    int64_t ldq;
    void* out;
    int64_t ldo;
    float* lse;
    const int32_t* tables;
    KvView kv;
    int64_t heads, kv_heads, head_dim, window;
    bool rounded, acts_bf16;
};

struct KernelTable {
    const char* name;
    bool dot_bf16;
    void (*linear)(const LinearJob&, int64_t chunk, uint8_t* scratch);
    void (*norm)(const NormJob&, int64_t row);
    void (*convert)(const float* x, void* y, int64_t width, bool acts_bf16);
    // One token's keys and values [2][kv_heads][head_dim] at a slot.
    void (*store)(const float* x, const KvView&, int64_t slot, int64_t kv_heads, int64_t head_dim);
    void (*rope)(const RopeJob&, const KvView&, int64_t token, int64_t slot, int64_t first_kv_head, int64_t last_kv_head);
    // kv heads [head, head + heads) of a row's tokens [first, first + count)
    void (*attention)(const AttentionJob&, const IgRow&, int64_t head, int64_t heads, int64_t first, int64_t count,
                      uint8_t* scratch);
    void (*swiglu)(const float* gate, const float* up, float* y, int64_t count);
    void (*top)(const float* logits, int64_t count, int64_t* best, float* values);
};

int64_t linear_chunks(const LinearJob& job);
int64_t rows_per_chunk(const LinearJob& job, int64_t threads);
int64_t linear_scratch_bytes();
int64_t attention_scratch_bytes(int64_t heads, int64_t kv_heads, int64_t head_dim);
// Tokens of one attention task.
int64_t query_tokens(int64_t heads, int64_t kv_heads);

// Part of a row's attention; tasks share nothing but what was stored before.
struct AttentionTask {
    const IgRow* row;
    int64_t first, count, head, heads;
};
std::vector<AttentionTask> attention_tasks(const IgRow* rows, int64_t count, int64_t heads, int64_t kv_heads,
                                           int64_t threads);

// Weights of token ids as fp32 rows; used by embeddings that are tied to the head.
void unpack_row(const IgLinear& linear, int64_t id, float* out);

// Tables that were compiled in, best first, whether or not this processor can run them.
const KernelTable* const* kernel_tables(int64_t* count);
bool usable(const KernelTable& table);

}  // namespace ig
