#include "ops.h"

#include <algorithm>

namespace octavo {

int MoveOp::begin(Step& step) {
    args.memory = step.batch->arena;
    args.plane_bytes = step.batch->arena_tokens * args.token_bytes;
    args.moves = step.batch->moves;
    args.count = step.batch->move_count;
    return move_items(args);
}

int EmbedOp::begin(Step& step) {
    args.weight = &weight;
    args.tokens = step.tokens.data();
    args.m = row_count(step);
    return embed_items(args);
}

int NormOp::begin(Step& step) {
    args.m = row_count(step);
    return norm_items(args);
}

int LinearOp::begin(Step& step) {
    args.weight = &weight;
    args.m = row_count(step);
    return linear_items(args);
}

int QuantizeOp::begin(Step& step) {
    args.m = row_count(step);
    return quantize_items(args);
}

int GateOp::begin(Step& step) {
    args.m = row_count(step);
    return gate_items(args);
}

int RopeOp::begin(Step& step) {
    args.rows = step.rows.data();
    args.row_count = int(step.rows.size());
    args.tokens = step.token_count();
    args.kv = step.layer_view(layer);
    return rope_items(args);
}

int AttentionOp::begin(Step& step) {
    args.rows = step.rows.data();
    args.kv = step.layer_view(layer);
    return step.rows.empty() ? 0 : attention_items(args);
}

int SelectOp::begin(Step& step) {
    args.chosen = step.selected_tokens.data();
    args.m = step.selected_count();
    return select_items(args);
}

int HeadOp::begin(Step& step) {
    const int end = std::min(first + kHeadRows, step.selected_count());
    if (first >= end) return 0;
    const bool drawn = std::any_of(step.selected.begin() + first, step.selected.begin() + end,
                                   [](const Selected& row) { return row.sampling && draws(*row.sampling); });
    args.weight = &weight;
    args.x = x + size_t(first) * args.x_stride;
    args.m = end - first;
    args.y_stride = size_t(weight.n) * sizeof(float);
    if (step.batch->logits) {
        args.y = step.batch->logits + int64_t(first) * weight.n;
    } else if (drawn) {
        memory->logits.resize(size_t(kHeadRows) * size_t(weight.n));
        args.y = memory->logits.data();
    } else {
        args.y = nullptr;
    }
    const int items = linear_items(args);
    const size_t found = size_t(items) * size_t(args.m);
    if (memory->best_value.size() < found) {
        memory->best_value.resize(found);
        memory->best_index.resize(found);
    }
    args.best_value = memory->best_value.data();
    args.best_index = memory->best_index.data();
    return items;
}

int SampleOp::begin(Step& step) {
    this->step = &step;
    drawing.clear();
    const int end = std::min(head->first + kHeadRows, step.selected_count());
    for (int row = head->first; row < end; row++) {
        const Sampling* sampling = step.selected[size_t(row)].sampling;
        if (sampling && draws(*sampling)) drawing.push_back(row);
    }
    // One more item takes the largest of all rows; it leaves those alone that draw.
    return head->first < end ? 1 + int(drawing.size()) : 0;
}

void SampleOp::item(int item, Scratch& scratch) {
    const LinearArgs& args = head->args;
    if (item > 0) {
        const int row = drawing[size_t(item - 1)];
        const float* logits = static_cast<const float*>(args.y) + int64_t(row - head->first) * head->weight.n;
        Selected& selected = step->selected[size_t(row)];
        selected.sampled = draw(logits, head->weight.n, *selected.sampling, scratch);
        return;
    }
    int32_t largest[kHeadRows];
    linear_argmax(args, largest);
    for (int row = 0; row < args.m; row++) {
        Selected& selected = step->selected[size_t(head->first + row)];
        if (selected.sampling && !draws(*selected.sampling)) selected.sampled = largest[row];
    }
}

}  // namespace octavo
