// The C interface besides the forward pass: contexts, and single operations for tests and for callers that
// compose their own layers.
#include <algorithm>
#include <cstring>

#include "context.h"
#include "kv_layout.h"

namespace ig {

uint8_t* Buffer::need(int64_t bytes) {
    if (bytes <= bytes_) return memory_;
    const int64_t size = round_up(bytes, 4096);
    void* fresh = nullptr;
    if (posix_memalign(&fresh, 4096, size_t(size)) != 0) throw std::bad_alloc();
    std::free(memory_);
    memset(fresh, 0, size_t(size));
    memory_ = (uint8_t*)fresh;
    bytes_ = size;
    return memory_;
}

int64_t linear_chunks(const LinearJob& job) {
    const int64_t groups = job.epilogue == Epilogue::SwiGlu ? panels(job.linear.n / 2) : panels(job.linear.n);
    return groups * ((job.rows + job.rows_per_chunk - 1) / job.rows_per_chunk);
}

// Rows are divided so that a part's activations stay in a core's own cache while the panels pass, and where the panels
// alone are too few to keep every thread busy to the end.
int64_t rows_per_chunk(const LinearJob& job, int64_t threads) {
    const int64_t groups = job.epilogue == Epilogue::SwiGlu ? panels(job.linear.n / 2) : panels(job.linear.n);
    const int64_t blocks = (job.rows + ROW_BLOCK - 1) / ROW_BLOCK, wanted = 8 * threads;
    const int64_t block_bytes = ROW_BLOCK * job.ldx * (job.acts_bf16 ? 2 : 4);
    const int64_t near = NEAR_BYTES > block_bytes ? NEAR_BYTES / block_bytes : 1;
    int64_t parts = (blocks + near - 1) / near;
    if (threads > 1 && groups * parts < wanted) parts = (wanted + groups - 1) / groups;
    if (parts > blocks) parts = blocks < 1 ? 1 : blocks;
    return (blocks + parts - 1) / parts * ROW_BLOCK;
}

int64_t linear_scratch_bytes() { return 2 * ROW_BLOCK * PANEL * 4; }

int64_t query_tokens(int64_t heads, int64_t kv_heads) {
    const int64_t tokens = QUERY_ROWS / (heads / kv_heads);
    return tokens < 1 ? 1 : tokens;
}

int64_t attention_scratch_bytes(int64_t heads, int64_t kv_heads, int64_t head_dim) {
    int64_t rows = query_tokens(heads, kv_heads) * (heads / kv_heads);
    rows = round_up(rows > heads ? rows : heads, 16);
    const int64_t wide = round_up(head_dim, PANEL);
    const int64_t per_row = 4 * (2 + 16 + wide + 2 * PANEL + act_stride(head_dim) + KEY_TILE);
    return rows * per_row + KEY_TILE * (act_stride(head_dim) + wide + head_dim) * 4 + 16 * 64;
}

// Tasks of single tokens cost what their contexts are long. Dealt out from the longest down, every thread's share is
// about as much and ends with the shortest.
static void deal(std::vector<AttentionTask>& tasks, int64_t threads) {
    std::stable_sort(tasks.begin(), tasks.end(),
                     [](const AttentionTask& a, const AttentionTask& b) { return a.row->context > b.row->context; });
    std::vector<AttentionTask> dealt;
    for (int64_t t = 0; t < threads; t++)
        for (size_t i = size_t(t); i < tasks.size(); i += size_t(threads)) dealt.push_back(tasks[i]);
    tasks.swap(dealt);
}

// A row of few tokens is one task, which walks its keys and values in the order they lie in memory, if there are
// rows enough for every thread; else each kv head is one.
std::vector<AttentionTask> attention_tasks(const IgRow* rows, int64_t count, int64_t heads, int64_t kv_heads,
                                           int64_t threads) {
    std::vector<AttentionTask> tasks;
    const int64_t most = query_tokens(heads, kv_heads);
    for (int64_t r = 0; r < count; r++) {
        const IgRow& row = rows[r];
        const bool whole = row.count == 1 && (threads == 1 || count >= 2 * threads);
        for (int64_t h = 0; h < kv_heads; h += whole ? kv_heads : 1)
            for (int64_t at = 0; at < row.count; at += most)
                tasks.push_back({&row, at, row.count - at < most ? row.count - at : most, h, whole ? kv_heads : 1});
    }
    if (int64_t(tasks.size()) == count) deal(tasks, threads);
    return tasks;
}

}  // namespace ig

void IgContext::prepare_scratch(int64_t bytes, int64_t private_bytes) {
    scratch_bytes = ig::round_up(bytes > scratch_bytes ? bytes : scratch_bytes, 64);
    for (auto& buffer : scratch) buffer.need(scratch_bytes + private_bytes);
}

namespace {

using namespace ig;

struct OneLinear {
    IgContext* context;
    LinearJob job;
};

struct Conversion {
    IgContext* context;
    const float* x;
    uint8_t* y;
    int64_t width, row_bytes;
    bool acts_bf16;
};

struct OneAttention {
    IgContext* context;
    std::vector<AttentionTask> tasks;
    AttentionJob job;
};

void run_linear(const void* what, int64_t chunk, int64_t thread) {
    const auto& one = *(const OneLinear*)what;
    one.context->table.linear(one.job, chunk, one.context->scratch[size_t(thread)].need(0));
}

void run_conversion(const void* what, int64_t row, int64_t) {
    const auto& c = *(const Conversion*)what;
    c.context->table.convert(c.x + row * c.width, c.y + row * c.row_bytes, c.width, c.acts_bf16);
}

void run_attention(const void* what, int64_t chunk, int64_t thread) {
    const auto& one = *(const OneAttention*)what;
    const AttentionTask& task = one.tasks[size_t(chunk)];
    one.context->table.attention(one.job, *task.row, task.head, task.heads, task.first, task.count,
                                 one.context->scratch[size_t(thread)].need(0));
}

template <class Body>
int64_t guarded(Body body) {
    try {
        body();
        return 0;
    } catch (const std::bad_alloc&) {
        return -2;
    }
}

}  // namespace

extern "C" {

int64_t ig_abi(void) { return IG_ABI; }

int64_t ig_isa_count(void) {
    int64_t count;
    kernel_tables(&count);
    return count;
}

const char* ig_isa_name(int64_t index) {
    int64_t count;
    const KernelTable* const* tables = kernel_tables(&count);
    return index < 0 || index >= count ? nullptr : tables[index]->name;
}

int64_t ig_isa_usable(int64_t index) {
    int64_t count;
    const KernelTable* const* tables = kernel_tables(&count);
    return index >= 0 && index < count && usable(*tables[index]);
}

// A context for the named instruction set; null if it is not compiled in or this processor lacks it.
IgContext* ig_open(const char* isa, int64_t threads, int64_t spin_us) {
    int64_t count;
    const KernelTable* const* tables = kernel_tables(&count);
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(tables[i]->name, isa) != 0 || !usable(*tables[i])) continue;
        try {
            return new IgContext(*tables[i], threads, spin_us);
        } catch (const std::exception&) {
            return nullptr;
        }
    }
    return nullptr;
}

void ig_close(IgContext* context) { delete context; }

const char* ig_context_isa(const IgContext* context) { return context->table.name; }

int64_t ig_workspace_bytes(const IgContext* context) {
    int64_t sum = context->hidden.bytes() + context->picked.bytes() + context->acts.bytes() + context->qkv.bytes() + context->mixed.bytes() + context->gated.bytes() +
                  context->own_kv.bytes();
    for (const auto& buffer : context->scratch) sum += buffer.bytes();
    for (const auto& buffer : context->draws) sum += buffer.bytes();
    return sum;
}

int64_t ig_linear(IgContext* context, const IgLinear* linear, const float* x, int64_t rows, int64_t rounded,
                  float* y) {
    return guarded([&] {
        const bool half = context->table.dot_bf16 && rounded && linear->format != IG_FP32;
        const int64_t stride = act_stride(linear->k), row_bytes = stride * (half ? 2 : 4);
        context->prepare_scratch(linear_scratch_bytes(), 0);
        Conversion conversion = {context, x, context->acts.need(rows * row_bytes), linear->k, row_bytes, half};
        LinearJob job = {*linear, conversion.y, stride, rows, 0, Epilogue::Store, y, linear->n, half};
        job.rows_per_chunk = rows_per_chunk(job, context->pool.threads());
        OneLinear one = {context, job};
        context->phases = {{run_conversion, &conversion, rows}, {run_linear, &one, linear_chunks(job)}};
        context->pool.run(context->phases);
    });
}

int64_t ig_attention(IgContext* context, const IgAttention* a) {
    return guarded([&] {
        context->prepare_scratch(attention_scratch_bytes(a->heads, a->kv_heads, a->head_dim), 0);
        KvView kv = {(uint8_t*)a->kv.base, a->kv.block_tokens, a->kv.format};
        kv.base += a->layer * a->kv.layer_stride * kv_unit(kv.format);
        const int64_t width = a->heads * a->head_dim;
        AttentionJob job = {a->q, width, a->out, width, a->lse, a->tables, kv, a->heads, a->kv_heads, a->head_dim,
                            a->window, a->rounded != 0, false};
        OneAttention one = {context, attention_tasks(a->rows, a->row_count, a->heads, a->kv_heads, context->pool.threads()),
                            job};
        context->phases = {{run_attention, &one, int64_t(one.tasks.size())}};
        context->pool.run(context->phases);
    });
}

// Tokens' keys and values, fp32 [tokens][2][kv_heads][head_dim], at their slots of one layer.
int64_t ig_kv_store(IgContext* context, const float* x, const int32_t* slots, int64_t tokens, const IgKv* kv,
                    int64_t layer, int64_t kv_heads, int64_t head_dim) {
    KvView view = {(uint8_t*)kv->base, kv->block_tokens, kv->format};
    view.base += layer * kv->layer_stride * kv_unit(kv->format);
    for (int64_t t = 0; t < tokens; t++)
        context->table.store(x + t * 2 * kv_heads * head_dim, view, slots[t], kv_heads, head_dim);
    return 0;
}

int64_t ig_rms_norm(IgContext* context, const float* x, const float* weight, double eps, int64_t rows,
                    int64_t width, float* y) {
    return guarded([&] {
        // Through a padded row of its own: the kernel fills a row up to the stride of activations.
        float* row = (float*)context->acts.need(act_stride(width) * 4);
        for (int64_t r = 0; r < rows; r++) {
            context->table.norm({x + r * width, weight, row, nullptr, width, width, width, float(eps), false}, 0);
            memcpy(y + r * width, row, size_t(width) * 4);
        }
    });
}

int64_t ig_swiglu(IgContext* context, const float* gate, const float* up, int64_t count, float* y) {
    context->table.swiglu(gate, up, y, count);
    return 0;
}

// Per row: the best token, and its logit, the second best logit and the log of the sum of exponentials.
int64_t ig_top(IgContext* context, const float* logits, int64_t rows, int64_t vocab, int64_t* best, float* values) {
    for (int64_t r = 0; r < rows; r++) context->table.top(logits + r * vocab, vocab, best + r, values + 3 * r);
    return 0;
}
}
