// Program: a decoder's operations, recorded once, and the buffers between them. `step` carries the list out for one batch.
//
// Operations are added in the order in which they run. Buffers hold one row for each token of a step or, once rows have been
// selected, for each token whose logits are wanted; they are as long as the largest step needs, and cost memory only where touched.
// Weights and vectors belong to the caller and outlive the program.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention.h"
#include "kv_view.h"
#include "linear.h"
#include "ops.h"
#include "pool.h"
#include "step.h"

namespace octavo {

enum class Format : int32_t { kFloat32 = 0, kBf16 = 1, kBlocks = 2 };  // kBlocks: QuantBlock, the input of quantised weights

struct Buffer {
    char* data = nullptr;
    size_t stride = 0;  // bytes between rows
    int width = 0;      // values in a row
    Format format = Format::kFloat32;
};

struct ProgramSpec {
    int32_t heads, kv_heads, head_dim, rotary_dim;
    int32_t layers, vocabulary;
    int32_t slots, max_tokens, max_positions;
    KvKind kv_kind;
    const float* turns;  // see RopeArgs
};

struct StepTimes {
    double total_s;   // from `begin` to `end`
    double sample_s;  // of it, in sampling
    double busy_s;    // spent inside operations by all threads together
    double ticks_per_s;
    double attention_s;     // of total_s, in attention
    int64_t kv_read_bytes;  // keys and values that attention had to read at least once, in all layers
};

class Program {
public:
    Program(Pool& pool, const ProgramSpec& spec);
    ~Program();
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    // ---- recording: each returns why it cannot be done, as a sentence; nullptr where it is done

    int add_buffer(int width, Format format);  // its number
    const char* embed(const Weight& weight, float scale, int out);
    const char* norm(int residual, int delta, const float* delta_weight, const float* weight, float eps, int out, int blocks);
    const char* linear(const Weight& weight, const float* bias, int x, int y, int y_column, Epilogue epilogue);
    const char* quantize(int x, int y);
    const char* gate(int x, Epilogue activation, int out, int blocks);
    const char* rope(int layer, int qkv, int q, const float* q_norm, const float* k_norm, float eps);
    const char* attention(int layer, int q, int out, float scale, int window, float softcap);
    const char* select(int from, int to);   // operations recorded after it see the selected rows
    const char* head(const Weight& weight, int x, float softcap);

    // ---- a step

    int op_count() const { return int(ops_.size()); }
    const char* begin(const Batch& batch);  // checks and prepares; nothing has changed where it returns a sentence
    void run(int first, int count);         // operations of the list
    void attend(int op, int row);           // an attention of the list, merging included, for one row of the batch alone
    void end(StepTimes& times);             // takes in what was sampled
    void op_items(int32_t* items) const;     // [op_count]: how many each operation has in this step
    void op_ticks(double* spent) const;      // [op_count]: of the last step

private:
    Buffer& buffer(int index) { return buffers_[size_t(index)]; }
    bool valid(int index) const { return index >= 0 && index < int(buffers_.size()); }
    bool is(int index, Format format) const { return valid(index) && buffers_[size_t(index)].format == format; }
    template <class T>
    T& add();
    template <class T>
    T& add_product(const Weight& weight);
    char* map_rows(size_t stride);
    AttentionPlan* plan_of(int window);
    AttentionPlan& plan_apart(const AttentionPlan& together, int row);
    const char* check(const Batch& batch) const;
    void take_rows(const Batch& batch);
    int64_t kv_read_bytes() const;

    Pool& pool_;
    const ProgramSpec spec_;
    std::vector<Buffer> buffers_;
    std::vector<std::pair<void*, size_t>> memory_;  // of the buffers, mapped
    std::map<size_t, char*> prepared_;              // rows that a product has converted, by their length: one product at a time
    std::vector<std::unique_ptr<Op>> ops_;
    std::vector<std::unique_ptr<AttentionPlan>> plans_;  // one for each window
    struct PlanApart {
        int64_t step = 0;  // for which it was made
        AttentionPlan plan;
    };
    std::map<std::pair<const AttentionPlan*, int>, PlanApart> apart_;  // for a row alone, by that for all rows; made when asked for
    bool selecting_ = false;                             // operations recorded from now on see the selected rows
    HeadMemory head_;

    Step step_;
    std::vector<Phase> phases_;          // one for each operation
    std::vector<Sampling> sampling_;     // by slot
    std::vector<int32_t> last_sampled_;  // by slot
    int64_t steps_ = 0;
    double began_s_ = 0.0;
    uint64_t began_ticks_ = 0, busy_before_ = 0;
};

}  // namespace octavo
