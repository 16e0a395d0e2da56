// The operations of a program. Each joins one kernel's arguments, set while recording, with what changes from step to step.
#pragma once

#include <memory>
#include <vector>

#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "norm.h"
#include "pool.h"
#include "quantize.h"
#include "rope.h"
#include "step.h"

namespace octavo {

// One operation of the list. `begin` makes it ready for a step and returns how many items it has, 0 where there is nothing to do.
class Op : public Work {
public:
    virtual int begin(Step& step) = 0;
    bool samples = false;   // counts as sampling, not as computing
    bool attends = false;   // counts as attention
    bool selected = false;  // its rows are those that were selected, not all tokens of the step

protected:
    int row_count(const Step& step) const { return selected ? step.selected_count() : step.token_count(); }
};

// Copies keys and values before anything reads them.
struct MoveOp : Op {
    MoveArgs args{};
    int begin(Step& step) override;
    void item(int item, Scratch& scratch) override { move_item(args, item, scratch); }
};

struct EmbedOp : Op {
    Weight weight{};
    EmbedArgs args{};
    int begin(Step& step) override;
    void item(int item, Scratch& scratch) override { embed_item(args, item, scratch); }
};

struct NormOp : Op {
    NormArgs args{};
    int begin(Step& step) override;
    void item(int item, Scratch& scratch) override { norm_item(args, item, scratch); }
};

struct LinearOp : Op {
    Weight weight{};
    LinearArgs args{};
    int begin(Step& step) override;
    void item(int item, Scratch& scratch) override { linear_item(args, item, scratch); }
};

// Converts the rows of the product after it, where the ISA wants that.
struct PrepareOp : Op {
    Op* product = nullptr;
    const LinearArgs* args = nullptr;  // the product's
    int begin(Step& step) override { return product->begin(step) > 0 ? linear_prepare_items(*args) : 0; }
    void item(int item, Scratch& scratch) override { linear_prepare_item(*args, item, scratch); }
};

struct QuantizeOp : Op {
    QuantizeArgs args{};
    int begin(Step& step) override;
    void item(int item, Scratch& scratch) override { quantize_item(args, item, scratch); }
};

struct GateOp : Op {
    GateArgs args{};
    int begin(Step& step) override;
    void item(int item, Scratch& scratch) override { gate_item(args, item, scratch); }
};

struct RopeOp : Op {
    int layer = 0;
    RopeArgs args{};
    int begin(Step& step) override;
    void item(int item, Scratch& scratch) override { rope_item(args, item, scratch); }
};

struct AttentionOp : Op {
    int layer = 0;
    AttentionArgs args{};
    int begin(Step& step) override;
    void item(int item, Scratch& scratch) override { attention_item(args, item, scratch); }
};

// The second phase of the attention before it.
struct MergeOp : Op {
    AttentionOp* attention = nullptr;
    int begin(Step&) override { return attention_merge_items(attention->args); }
    void item(int item, Scratch& scratch) override { attention_merge_item(attention->args, item, scratch); }
};

struct SelectOp : Op {
    SelectArgs args{};
    int begin(Step& step) override;
    void item(int item, Scratch& scratch) override { select_item(args, item, scratch); }
};

// What the blocks of the head share: one block is computed at a time.
struct HeadMemory {
    std::vector<float> logits;  // [kHeadRows][vocabulary], made when a row draws for the first time
    std::vector<float> best_value;
    std::vector<int32_t> best_index;
};

constexpr int kHeadRows = 64;  // selected rows in a block: bounds the memory for logits

// The output layer for some of the selected rows: the largest logit of each, and the logits themselves where somebody wants them.
struct HeadOp : Op {
    Weight weight{};
    LinearArgs args{};
    const char* x = nullptr;  // of the first selected row
    int first = 0;            // selected row at which the block begins
    HeadMemory* memory = nullptr;
    int begin(Step& step) override;
    void item(int item, Scratch& scratch) override { linear_item(args, item, scratch); }
};

// Samples from what the head found.
struct SampleOp : Op {
    const HeadOp* head = nullptr;
    Step* step = nullptr;
    std::vector<int> drawing;  // the block's rows that draw; the others take the largest
    int begin(Step& step) override;
    void item(int item, Scratch& scratch) override;
};

}  // namespace octavo
