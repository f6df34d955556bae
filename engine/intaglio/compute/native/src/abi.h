// The C interface between the shared library and its Python caller. Every field is 8 bytes wide, so that the
// two sides cannot disagree about padding; IG_ABI changes whenever a structure does.
#pragma once
#include <cstdint>

#define IG_ABI 3

// The library is compiled with hidden visibility: only these functions are seen from outside.
#define IG_API __attribute__((visibility("default")))

extern "C" {

// Storage of a linear's weights. Outputs stand in panels of 64 (see layout.h).
enum IgFormat : int64_t { IG_FP32 = 0, IG_BF16 = 1, IG_INT8 = 2, IG_Q8_0 = 3, IG_Q4_1 = 4 };
// Storage of keys and values: IG_FP32, IG_BF16, or records of bytes (see kv_layout.h).
enum IgKvFormat : int64_t { IG_KV_FP8 = 16, IG_KV_INT8 = 17, IG_KV_INT4 = 18 };

// y[n] = W[n, k] x[k] + bias. `weight` is packed. `scales`: fp32 per output for IG_INT8, else null.
struct IgLinear {
    const void* weight;
    const float* scales;
    const float* bias;
    int64_t n, k, format;
};

// One decoder layer. qkv holds q, k, v along its outputs; gate_up is packed with gate and up panels in turn.
// qk_norm is [heads + kv_heads][head_dim] or null. window <= 0 means every earlier token is seen.
struct IgLayer {
    const float* input_norm;
    const float* post_norm;
    const float* qk_norm;
    IgLinear qkv, out, gate_up, down;
    int64_t window;
};

struct IgModel {
    const IgLayer* layers;
    const float* final_norm;
    IgLinear head;
    // Dense embedding rows in fp32 or bf16, or null: then rows of the head serve.
    const void* embedding;
    int64_t embedding_format;
    // rounded: activations are rounded to bf16 before products, where the instruction set multiplies bf16.
    int64_t layer_count, hidden, intermediate, heads, kv_heads, head_dim, vocab, rounded;
    double norm_eps;
};

// One row of a step: tokens [start, start + count) of the flat batch, after `context` tokens already stored.
// Its block table is tables[table ...]; slot of position p = tables[table + p / block_tokens] * block_tokens
// + p % block_tokens + slot_offset.
struct IgRow {
    int64_t start, count, context, table, slot_offset;
};

// Keys and values of a layer: element (slot, 0 keys / 1 values, kv head, i) lies at
// base + layer * layer_stride + slot * 2 * kv_heads * head_dim + ... (in elements; in bytes and records of them for
// a quantised format). base null: no cache, each row attends to its own tokens alone.
struct IgKv {
    void* base;
    int64_t layer_stride, block_tokens, format;
};

struct IgStep {
    const int32_t* tokens;
    const int32_t* positions;
    const IgRow* rows;
    const int32_t* tables;
    const int32_t* logit_rows;
    // fp32 rotary tables [position][head_dim]; the second half of a row of `sin` is +sin.
    const float* cos;
    const float* sin;
    IgKv kv;
    // Hidden states fp32 [token_count][hidden]: read when first > 0 or tokens is null, always written. Null where only
    // logits are wanted (then first is 0): the last layer is finished for the rows of the logits alone.
    float* hidden;
    float* logits;
    int64_t token_count, row_count, logit_count, first, last;
};

// A softmax(q k^T) v over one layer of a store. q is fp32 [token_count][heads * head_dim], out likewise;
// lse is fp32 [token_count][heads] (natural logarithm) or null. rounded: queries and weights pass through
// bf16 as a bf16 model has it.
struct IgAttention {
    const float* q;
    float* out;
    float* lse;
    const IgRow* rows;
    const int32_t* tables;
    IgKv kv;
    int64_t layer, row_count, heads, kv_heads, head_dim, window, rounded;
};

// One token to choose from row `row` of logits [rows][vocab]; see output/sampler.py for what the settings mean.
// temperature 0: the best token. history: ids in [0, vocab). top_ids and top_logprobs: room for `top_count` best tokens
// and their log-probabilities; their number comes back in it. token -1: the logits are not finite, the rest is void.
struct IgChoice {
    int64_t row;
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;
    uint64_t seed;
    int64_t sample_index, position;
    const int32_t* history;
    int64_t history_count;
    int64_t* top_ids;
    double* top_logprobs;
    int64_t top_count;
    int64_t token;
    double logprob, margin;
};

struct IgContext;

IG_API int64_t ig_abi(void);
IG_API int64_t ig_isa_count(void);
IG_API const char* ig_isa_name(int64_t index);
IG_API int64_t ig_isa_usable(int64_t index);

IG_API IgContext* ig_open(const char* isa, int64_t threads, int64_t spin_us);
IG_API void ig_close(IgContext* context);
IG_API const char* ig_context_isa(const IgContext* context);
IG_API int64_t ig_workspace_bytes(const IgContext* context);

IG_API int64_t ig_packed_bytes(int64_t n, int64_t k, int64_t format);
IG_API int64_t ig_pack(void* packed, const void* source, int64_t n, int64_t k, int64_t format, int64_t panel, int64_t step);
IG_API int64_t ig_unpack_rows(float* out, const IgLinear* linear, const int32_t* ids, int64_t count);
IG_API void ig_advise_huge(void* memory, int64_t bytes);
IG_API void ig_trim(void);

IG_API int64_t ig_linear(IgContext* context, const IgLinear* linear, const float* x, int64_t rows, int64_t rounded,
                         float* y);
IG_API int64_t ig_attention(IgContext* context, const IgAttention* attention);
IG_API int64_t ig_kv_store(IgContext* context, const float* x, const int32_t* slots, int64_t tokens, const IgKv* kv,
                    int64_t layer, int64_t kv_heads, int64_t head_dim);
IG_API int64_t ig_rms_norm(IgContext* context, const float* x, const float* weight, double eps, int64_t rows,
                    int64_t width, float* y);
IG_API int64_t ig_swiglu(IgContext* context, const float* gate, const float* up, int64_t count, float* y);
IG_API int64_t ig_top(IgContext* context, const float* logits, int64_t rows, int64_t vocab, int64_t* best, float* values);
IG_API int64_t ig_choose(IgContext* context, const float* logits, int64_t vocab, IgChoice* choices, int64_t count);
IG_API int64_t ig_forward(IgContext* context, const IgModel* model, const IgStep* step);
}
