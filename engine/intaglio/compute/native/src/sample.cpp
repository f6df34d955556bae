// Choosing tokens from logits: the rules of output/sampler.py, in the same order and precision, and the same
// counter-based random numbers, so that both choose the same token. Logits and the penalty are fp32, what follows is
// fp64; best first means by scaled logit, the lower id first among equals.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "context.h"

namespace ig {

namespace {

// Philox4x32-10 (Salmon et al., SC 2011), counter (position, sample, purpose 0, 0): 53 bits in [0, 1).
double uniform(uint64_t seed, uint32_t sample, uint32_t position) {
    uint32_t c[4] = {position, sample, 0, 0}, k[2] = {uint32_t(seed), uint32_t(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        const uint64_t low = uint64_t(0xD2511F53u) * c[0], high = uint64_t(0xCD9E8D57u) * c[2];
        const uint32_t next[4] = {uint32_t(high >> 32) ^ c[1] ^ k[0], uint32_t(high),
                                  uint32_t(low >> 32) ^ c[3] ^ k[1], uint32_t(low)};
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return double((uint64_t(c[0]) << 21) | (c[1] >> 11)) * 0x1p-53;
}

// Puts the `want` ids of best score among `count` first into ids, best first.
template <class Score>
int64_t best_ids(Score score, int64_t count, int64_t want, int32_t* ids) {
    const auto better = [&](int32_t a, int32_t b) {
        const double x = score(a), y = score(b);
        return x > y || (x == y && a < b);
    };
    const int64_t kept = least(want, count);
    for (int64_t i = 0; i < kept; i++) ids[i] = int32_t(i);
    // A heap whose front is the worst of the kept; a later id loses against an equal one.
    std::make_heap(ids, ids + kept, better);
    double bar = kept ? score(ids[0]) : 0;
    for (int64_t i = kept; i < count && kept; i++) {
        if (!(score(int32_t(i)) > bar)) continue;
        std::pop_heap(ids, ids + kept, better);
        ids[kept - 1] = int32_t(i);
        std::push_heap(ids, ids + kept, better);
        bar = score(ids[0]);
    }
    std::sort_heap(ids, ids + kept, better);
    return kept;
}

// One draw over a row. Memory for [vocab] shares and ids is lent.
class Draw {
  public:
    Draw(const IgChoice& choice, const float* row, int64_t vocab, double* shares, int32_t* ids)
        : choice_(choice), row_(row), vocab_(vocab), shares_(shares), ids_(ids) {}

    int64_t token() {
        keep();
        double total = 0;
        for (int64_t i = 0; i < kept_; i++) total += shares_[i];
        const double target =
            uniform(choice_.seed, uint32_t(choice_.sample_index), uint32_t(choice_.position)) * total;
        double sum = 0;
        int64_t at = 0;
        for (; at < kept_ - 1; at++) {
            sum += shares_[at];
            if (sum > target) break;
        }
        while (at > 0 && shares_[at] == 0.0) at--;
        return ordered_ ? ids_[at] : at;
    }

  private:
    double scaled(int64_t id) const { return double(row_[id]) / choice_.temperature; }

    // Leaves the kept tokens' shares, with their ids best first or, where nothing is dropped, in order of ids.
    void keep() {
        const auto score = [this](int32_t id) { return scaled(id); };
        if (choice_.top_k > 0) {
            kept_ = best_ids(score, vocab_, choice_.top_k, ids_);
            ordered_ = true;
            softmax([this](int64_t i) { return scaled(ids_[i]); });
            return trim();
        }
        kept_ = vocab_;
        softmax([this](int64_t i) { return scaled(i); });
        if (choice_.top_p >= 1.0 && choice_.min_p <= 0.0) return;
        gather();
        trim();
    }

    template <class Value>
    void softmax(Value value) {
        double high = -HUGE_VAL, sum = 0;
        for (int64_t i = 0; i < kept_; i++) high = std::max(high, value(i));
        for (int64_t i = 0; i < kept_; i++) {
            shares_[i] = std::exp(value(i) - high);
            sum += shares_[i];
        }
        for (int64_t i = 0; i < kept_; i++) shares_[i] /= sum;
    }

    // Sorts what may stay. A token that top-p keeps has, with all that follow it, more than 1 - top_p: at least
    // (1 - top_p) / vocab of its own. Half of that bears any rounding.
    void gather() {
        double floor = 0;
        if (choice_.top_p < 1.0) floor = (1.0 - choice_.top_p) / double(2 * vocab_);
        if (choice_.min_p > 0.0)
            floor = std::max(floor, choice_.min_p * *std::max_element(shares_, shares_ + vocab_));
        int64_t count = 0;
        for (int64_t id = 0; id < vocab_; id++)
            if (shares_[id] >= floor) ids_[count++] = int32_t(id);
        std::sort(ids_, ids_ + count, [this](int32_t a, int32_t b) {
            const double x = scaled(a), y = scaled(b);
            return x > y || (x == y && a < b);
        });
        double* sorted = shares_ + vocab_;
        for (int64_t i = 0; i < count; i++) sorted[i] = shares_[ids_[i]];
        shares_ = sorted;
        kept_ = count;
        ordered_ = true;
    }

    // Top-p, then min-p, over tokens that stand best first. The token that crosses top-p stays.
    void trim() {
        int64_t keep = kept_;
        if (choice_.top_p < 1.0) {
            double sum = 0;
            keep = 0;
            for (int64_t i = 0; i < kept_; i++) {
                sum += shares_[i];
                keep += sum - shares_[i] < choice_.top_p;
            }
        }
        if (choice_.min_p > 0.0) {
            int64_t high = 0;
            while (high < kept_ && shares_[high] >= choice_.min_p * shares_[0]) high++;
            keep = least(keep, high);
        }
        kept_ = keep < 1 ? 1 : keep;
    }

    const IgChoice& choice_;
    const float* row_;
    const int64_t vocab_;
    double* shares_;
    int32_t* ids_;
    int64_t kept_ = 0;
    bool ordered_ = false;
};

struct Choosing {
    IgContext* context;
    const float* logits;
    int64_t vocab;
    IgChoice* choices;
};

bool is_drawn(const IgChoice& choice) { return choice.temperature > 0.0; }
bool is_penalised(const IgChoice& choice) { return choice.repetition_penalty != 1.0 && choice.history_count > 0; }

// Two runs of shares, ids and a row of penalised logits.
int64_t draw_bytes(int64_t vocab) { return vocab * (2 * 8 + 4 + 4); }

const float* penalised(const IgChoice& choice, const float* row, int64_t vocab, float* copy) {
    if (!is_penalised(choice)) return row;
    const float penalty = float(choice.repetition_penalty);
    memcpy(copy, row, size_t(vocab) * 4);
    // From the row itself, so that a token seen twice is punished once.
    for (int64_t i = 0; i < choice.history_count; i++) {
        const int32_t id = choice.history[i];
        copy[id] = row[id] > 0 ? row[id] / penalty : row[id] * penalty;
    }
    return copy;
}

void run_choice(const void* what, int64_t index, int64_t thread) {
    const auto& job = *(const Choosing*)what;
    IgChoice& choice = job.choices[index];
    const float* row = job.logits + choice.row * job.vocab;
    float values[3];
    job.context->table.top(row, job.vocab, &choice.token, values);
    if (choice.token < 0 || !std::isfinite(values[2])) {
        choice.token = -1;
        return;
    }
    choice.margin = double(values[0]) - double(values[1]);
    uint8_t* room = job.context->draws[size_t(thread)].need(0);
    double* shares = (double*)room;
    int32_t* ids = (int32_t*)(shares + 2 * job.vocab);
    if (is_drawn(choice) || is_penalised(choice)) {
        const float* changed = penalised(choice, row, job.vocab, (float*)(ids + job.vocab));
        if (is_drawn(choice)) choice.token = Draw(choice, changed, job.vocab, shares, ids).token();
        else choice.token = std::max_element(changed, changed + job.vocab) - changed;
    }
    choice.logprob = double(row[choice.token]) - double(values[2]);
    if (choice.top_count > 0) {
        choice.top_count = best_ids([row](int32_t id) { return double(row[id]); }, job.vocab, choice.top_count, ids);
        for (int64_t i = 0; i < choice.top_count; i++) {
            choice.top_ids[i] = ids[i];
            choice.top_logprobs[i] = double(row[ids[i]]) - double(values[2]);
        }
    }
}

}  // namespace
}  // namespace ig

extern "C" int64_t ig_choose(IgContext* context, const float* logits, int64_t vocab, IgChoice* choices, int64_t count) {
    try {
        bool roomy = false;
        for (int64_t i = 0; i < count; i++)
            roomy |= ig::is_drawn(choices[i]) || ig::is_penalised(choices[i]) || choices[i].top_count > 0;
        if (roomy)
            for (auto& buffer : context->draws) buffer.need(ig::draw_bytes(vocab));
        ig::Choosing job = {context, logits, vocab, choices};
        if (count == 1) {
            ig::run_choice(&job, 0, 0);
            return 0;
        }
        context->phases = {{ig::run_choice, &job, count}};
        context->pool.run(context->phases);
        return 0;
    } catch (const std::bad_alloc&) {
        return -2;
    }
}
