// A whole range of decoder layers in one call: the phases of every layer are laid out beforehand and walked by
// the pool. Hidden states stay fp32 from end to end; only what a matrix product reads is rounded.
#include <cstring>

#include "context.h"
#include "kv_layout.h"

namespace ig {

namespace {

// With at most this many rows every thread normalises them for itself: cheaper than one more phase.
constexpr int64_t PRIVATE_ROWS = 4;

struct LinearPhase {
    IgContext* context;
    LinearJob job;
    NormJob norm;  // of the linear's input when `stamp` > 0
    int64_t stamp;
};

struct NormPhase {
    IgContext* context;
    NormJob job;
    int64_t rows, rows_per_chunk;
};

struct AttentionPhase {
    IgContext* context;
    const std::vector<AttentionTask>* tasks;
    RopeJob rope;
    AttentionJob job;
    bool rotates;
};

struct EmbedPhase {
    const IgModel* model;
    const int32_t* tokens;
    float* hidden;
};

// Rows of hidden states and of attention's outputs to the front of buffers of their own.
struct PickPhase {
    const int32_t* rows;
    const float* hidden;
    const uint8_t* mixed;
    float* hidden_to;
    uint8_t* mixed_to;
    int64_t hidden_bytes, mixed_bytes;
};

void run_linear(const void* what, int64_t chunk, int64_t thread) {
    const auto& phase = *(const LinearPhase*)what;
    IgContext& context = *phase.context;
    uint8_t* scratch = context.scratch[size_t(thread)].need(0);
    if (!phase.stamp) return context.table.linear(phase.job, chunk, scratch);
    LinearJob job = phase.job;
    job.x = context.private_rows(thread);
    if (context.stamp[size_t(thread)].value != phase.stamp) {
        NormJob norm = phase.norm;
        norm.y = context.private_rows(thread);
        for (int64_t r = 0; r < job.rows; r++) context.table.norm(norm, r);
        context.stamp[size_t(thread)].value = phase.stamp;
    }
    context.table.linear(job, chunk, scratch);
}

void run_norm(const void* what, int64_t chunk, int64_t) {
    const auto& phase = *(const NormPhase*)what;
    const int64_t end = (chunk + 1) * phase.rows_per_chunk;
    for (int64_t r = chunk * phase.rows_per_chunk; r < end && r < phase.rows; r++)
        phase.context->table.norm(phase.job, r);
}

int64_t slot_of(const AttentionJob& job, const IgRow& row, int64_t position) {
    const int64_t size = job.kv.block_tokens;
    return int64_t(job.tables[row.table + position / size]) * size + position % size + row.slot_offset;
}

void rotate_task(const AttentionPhase& phase, const AttentionTask& task) {
    for (int64_t i = task.first; i < task.first + task.count; i++)
        phase.context->table.rope(phase.rope, phase.job.kv, task.row->start + i,
                                  slot_of(phase.job, *task.row, task.row->context + i), task.head,
                                  task.head + task.heads);
}

void run_rope(const void* what, int64_t chunk, int64_t) {
    const auto& phase = *(const AttentionPhase*)what;
    rotate_task(phase, (*phase.tasks)[size_t(chunk)]);
}

void run_attention(const void* what, int64_t chunk, int64_t thread) {
    const auto& phase = *(const AttentionPhase*)what;
    const AttentionTask& task = (*phase.tasks)[size_t(chunk)];
    if (phase.rotates) rotate_task(phase, task);
    phase.context->table.attention(phase.job, *task.row, task.head, task.heads, task.first, task.count,
                                   phase.context->scratch[size_t(thread)].need(0));
}

void run_embed(const void* what, int64_t chunk, int64_t) {
    const auto& phase = *(const EmbedPhase*)what;
    const IgModel& model = *phase.model;
    const int64_t id = phase.tokens[chunk], width = model.hidden;
    float* to = phase.hidden + chunk * width;
    if (!model.embedding) return unpack_row(model.head, id, to);
    if (model.embedding_format == IG_FP32) {
        memcpy(to, (const float*)model.embedding + id * width, size_t(width) * 4);
        return;
    }
    const uint16_t* from = (const uint16_t*)model.embedding + id * width;
    for (int64_t i = 0; i < width; i++) {
        const uint32_t bits = uint32_t(from[i]) << 16;
        memcpy(to + i, &bits, 4);
    }
}

void run_pick(const void* what, int64_t chunk, int64_t) {
    const auto& phase = *(const PickPhase*)what;
    const int64_t row = phase.rows[chunk];
    memcpy((uint8_t*)phase.hidden_to + chunk * phase.hidden_bytes, (const uint8_t*)phase.hidden + row * phase.hidden_bytes,
           size_t(phase.hidden_bytes));
    memcpy(phase.mixed_to + chunk * phase.mixed_bytes, phase.mixed + row * phase.mixed_bytes, size_t(phase.mixed_bytes));
}

// Everything that one step needs while the pool walks it.
class Step {
  public:
    Step(IgContext& context, const IgModel& model, const IgStep& step)
        : context_(context), model_(model), step_(step), rows_(step.token_count) {
        acts_bf16_ = context.table.dot_bf16 && model.rounded && model.head.format != IG_FP32;
        act_bytes_ = acts_bf16_ ? 2 : 4;
    }

    void run() {
        make_room();
        make_tasks();
        if (step_.tokens && step_.first == 0) {
            embed_ = {&model_, step_.tokens, hidden_};
            context_.phases.push_back({run_embed, &embed_, rows_});
        }
        for (int64_t i = step_.first; i < step_.last; i++) add_layer(i);
        if (step_.logit_count) add_head();
        context_.pool.run(context_.phases);
    }

  private:
    void make_room() {
        const int64_t q = model_.heads * model_.head_dim, kv = model_.kv_heads * model_.head_dim;
        const int64_t wide = act_stride(model_.hidden) * act_bytes_;
        int64_t scratch = attention_scratch_bytes(model_.heads, model_.kv_heads, model_.head_dim);
        if (scratch < linear_scratch_bytes()) scratch = linear_scratch_bytes();
        context_.prepare_scratch(scratch, PRIVATE_ROWS * wide);
        const int64_t most = rows_ > step_.logit_count ? rows_ : step_.logit_count;
        acts_ = context_.acts.need(most * wide);
        hidden_ = step_.hidden ? step_.hidden : (float*)context_.hidden.need(rows_ * model_.hidden * 4);
        qkv_ = (float*)context_.qkv.need(rows_ * (q + 2 * kv) * 4);
        mixed_ = context_.mixed.need(rows_ * act_stride(q) * act_bytes_);
        gated_ = context_.gated.need(rows_ * act_stride(model_.intermediate) * act_bytes_);
        kv_ = {(uint8_t*)step_.kv.base, step_.kv.block_tokens, step_.kv.format};
        if (!step_.kv.base) kv_.base = context_.own_kv.need(rows_ * kv_token_bytes(kv_.format, model_.kv_heads, model_.head_dim));
        const size_t layers = size_t(step_.last - step_.first);
        linears_.reserve(layers * 4 + 1);
        norms_.reserve(layers * 2 + 1);
        attentions_.reserve(layers);
        context_.phases.clear();
    }

    void make_tasks() {
        tasks_ = attention_tasks(step_.rows, step_.row_count, model_.heads, model_.kv_heads, context_.pool.threads());
        for (const AttentionTask& task : tasks_)
            if (task.count < task.row->count) apart_ = true;
    }

    void add_layer(int64_t index) {
        const IgLayer& layer = model_.layers[index];
        const int64_t q = model_.heads * model_.head_dim, hidden = model_.hidden;
        add_normed(layer.qkv, layer.input_norm, Epilogue::Store, qkv_, layer.qkv.n);
        add_attention(layer, index);
        if (index == model_.layer_count - 1 && !step_.hidden && step_.logit_count < rows_) pick_rows();
        if (!rows_) return;
        add_linear(layer.out, mixed_, act_stride(q), rows_, Epilogue::Add, hidden_, hidden);
        add_normed(layer.gate_up, layer.post_norm, Epilogue::SwiGlu, gated_, act_stride(model_.intermediate));
        add_linear(layer.down, gated_, act_stride(model_.intermediate), rows_, Epilogue::Add, hidden_, hidden);
    }

    // Behind the last attention nobody reads any row but those whose logits are wanted: the rest ends here.
    void pick_rows() {
        const int64_t hidden = model_.hidden * 4, mixed = act_stride(model_.heads * model_.head_dim) * act_bytes_;
        uint8_t* to = context_.picked.need(step_.logit_count * (hidden + mixed));
        pick_ = {step_.logit_rows, hidden_, mixed_, (float*)(to + step_.logit_count * mixed), to, hidden, mixed};
        context_.phases.push_back({run_pick, &pick_, step_.logit_count});
        hidden_ = pick_.hidden_to;
        mixed_ = to;
        rows_ = step_.logit_count;
        picked_ = true;
    }

    void add_head() {
        NormJob norm = norm_job(model_.final_norm, picked_ ? nullptr : step_.logit_rows);
        add_normed_rows(model_.head, norm, step_.logit_count, Epilogue::Store, step_.logits, model_.vocab);
    }

    NormJob norm_job(const float* weight, const int32_t* index) const {
        return {hidden_, weight, acts_, index, model_.hidden, act_stride(model_.hidden), model_.hidden,
                float(model_.norm_eps), acts_bf16_};
    }

    void add_normed(const IgLinear& linear, const float* weight, Epilogue epilogue, void* y, int64_t ldy) {
        add_normed_rows(linear, norm_job(weight, nullptr), rows_, epilogue, y, ldy);
    }

    void add_normed_rows(const IgLinear& linear, const NormJob& norm, int64_t rows, Epilogue epilogue, void* y,
                         int64_t ldy) {
        const bool own = rows <= PRIVATE_ROWS;
        if (!own) {
            const int64_t each = rows / (8 * context_.pool.threads()) + 1;
            norms_.push_back({&context_, norm, rows, each});
            context_.phases.push_back({run_norm, &norms_.back(), (rows + each - 1) / each});
        }
        add_linear(linear, acts_, act_stride(model_.hidden), rows, epilogue, y, ldy);
        if (own) {
            linears_.back().norm = norm;
            linears_.back().stamp = ++context_.stamps;
        }
    }

    void add_linear(const IgLinear& linear, const void* x, int64_t ldx, int64_t rows, Epilogue epilogue, void* y,
                    int64_t ldy) {
        LinearJob job = {linear, x, ldx, rows, 0, epilogue, y, ldy, acts_bf16_};
        job.rows_per_chunk = rows_per_chunk(job, context_.pool.threads());
        linears_.push_back({&context_, job, {}, 0});
        context_.phases.push_back({run_linear, &linears_.back(), linear_chunks(job)});
    }

    void add_attention(const IgLayer& layer, int64_t index) {
        const int64_t width = layer.qkv.n, dim = model_.head_dim;
        KvView kv = kv_;
        if (step_.kv.base) kv.base += index * step_.kv.layer_stride * kv_unit(kv.format);
        RopeJob rope = {qkv_, width, step_.positions, step_.cos, step_.sin, layer.qk_norm,
                        float(model_.norm_eps), model_.heads, model_.kv_heads, dim};
        AttentionJob job = {qkv_, width, mixed_, act_stride(model_.heads * dim), nullptr, step_.tables, kv,
                            model_.heads, model_.kv_heads, dim, layer.window, acts_bf16_, acts_bf16_};
        attentions_.push_back({&context_, &tasks_, rope, job, !apart_});
        const int64_t count = int64_t(tasks_.size());
        // A later tile of a row reads what an earlier one stores: then storing is a phase of its own.
        if (apart_) context_.phases.push_back({run_rope, &attentions_.back(), count});
        context_.phases.push_back({run_attention, &attentions_.back(), count});
    }

    IgContext& context_;
    const IgModel& model_;
    const IgStep& step_;
    int64_t rows_;  // that are still computed
    bool acts_bf16_, apart_ = false, picked_ = false;
    int64_t act_bytes_;
    uint8_t *acts_ = nullptr, *mixed_ = nullptr, *gated_ = nullptr;
    float *qkv_ = nullptr, *hidden_ = nullptr;
    KvView kv_{};
    EmbedPhase embed_{};
    PickPhase pick_{};
    std::vector<AttentionTask> tasks_;
    std::vector<LinearPhase> linears_;
    std::vector<NormPhase> norms_;
    std::vector<AttentionPhase> attentions_;
};

}  // namespace
}  // namespace ig

extern "C" int64_t ig_forward(IgContext* context, const IgModel* model, const IgStep* step) {
    try {
        ig::Step(*context, *model, *step).run();
        return 0;
    } catch (const std::bad_alloc&) {
        return -2;
    }
}
