#include "program.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <new>

#include "ticks.h"

namespace octavo {

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Rows that lie a multiple of 4096 bytes apart would share the sets of a cache.
size_t row_stride(int width, Format format) {
    if (format != Format::kFloat32) return linear_stride(width);
    const size_t bytes = (size_t(width) * sizeof(float) + 63) / 64 * 64;
    return bytes % 1024 == 0 ? bytes + 64 : bytes;
}

bool gated(Epilogue epilogue) { return epilogue == Epilogue::kSilu || epilogue == Epilogue::kGelu; }

constexpr const char* kNoBuffer = "an operation was recorded on a buffer that does not exist or has another format.";

}  // namespace

Program::Program(Pool& pool, const ProgramSpec& spec)
    : pool_(pool), spec_(spec), sampling_(size_t(spec.slots), Sampling{0.0f, 1.0, 0, 0, 0}), last_sampled_(size_t(spec.slots), 0) {
    const int64_t head_bytes = int64_t(spec.head_dim) * (spec.kv_kind == KvKind::kBf16 ? 2 : 1);
    KvView& view = step_.first_layer;
    view.head_stride = head_bytes;
    view.scale_offset = head_bytes * spec.kv_heads;
    view.token_stride = view.scale_offset + (spec.kv_kind == KvKind::kInt8 ? int64_t(sizeof(float)) * spec.kv_heads : 0);
    view.kind = spec.kv_kind;
    add<MoveOp>().args = {nullptr, 0, view.token_stride, 2 * spec.layers, nullptr, 0};
}

Program::~Program() {
    for (const auto& [address, bytes] : memory_) munmap(address, bytes);
}

template <class T>
T& Program::add() {
    ops_.push_back(std::make_unique<T>());
    phases_.push_back({ops_.back().get(), 0});
    ops_.back()->selected = selecting_;
    return static_cast<T&>(*ops_.back());
}

// ---- recording

int Program::add_buffer(int width, Format format) {
    const size_t stride = row_stride(width, format);
    buffers_.push_back({map_rows(stride), stride, width, format});
    return int(buffers_.size()) - 1;
}

// Room for a row of each token of a step.
char* Program::map_rows(size_t stride) {
    const size_t bytes = stride * size_t(spec_.max_tokens);
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, bytes, MADV_HUGEPAGE);
    memory_.push_back({memory, bytes});
    return static_cast<char*>(memory);
}

// Adds an operation that multiplies with `weight`, after one that converts its rows where the ISA wants that.
template <class T>
T& Program::add_product(const Weight& weight) {
    const size_t stride = linear_prepared_stride(weight);
    if (stride == 0) return add<T>();
    char*& rows = prepared_[stride];
    if (!rows) rows = map_rows(stride);
    PrepareOp& prepare = add<PrepareOp>();
    T& op = add<T>();
    op.args.prepared = rows;
    prepare.product = &op;
    prepare.args = &op.args;
    return op;
}

const char* Program::embed(const Weight& weight, float scale, int out) {
    if (!is(out, Format::kFloat32)) return kNoBuffer;
    EmbedOp& op = add<EmbedOp>();
    op.weight = weight;
    op.args.width = buffer(out).width;
    op.args.scale = scale;
    op.args.out = reinterpret_cast<float*>(buffer(out).data);
    op.args.out_stride = buffer(out).stride;
    return nullptr;
}

const char* Program::norm(int residual, int delta, const float* delta_weight, const float* weight, float eps, int out, int blocks) {
    if (!is(residual, Format::kFloat32)) return kNoBuffer;
    if (delta >= 0 && !is(delta, Format::kFloat32)) return kNoBuffer;
    if (out >= 0 ? !is(out, Format::kBf16) : !is(blocks, Format::kBlocks)) return kNoBuffer;
    NormArgs args{};
    args.residual = reinterpret_cast<float*>(buffer(residual).data);
    args.residual_stride = buffer(residual).stride;
    args.width = buffer(residual).width;
    args.weight = weight;
    args.eps = eps;
    if (delta >= 0) {
        args.delta = reinterpret_cast<const float*>(buffer(delta).data);
        args.delta_stride = buffer(delta).stride;
        args.delta_weight = delta_weight;
    }
    if (out >= 0) {
        args.out = reinterpret_cast<bf16*>(buffer(out).data);
        args.out_stride = buffer(out).stride;
    }
    if (blocks >= 0) {
        args.blocks = reinterpret_cast<QuantBlock*>(buffer(blocks).data);
        args.blocks_stride = buffer(blocks).stride;
    }
    add<NormOp>().args = args;
    return nullptr;
}

const char* Program::linear(const Weight& weight, const float* bias, int x, int y, int y_column, Epilogue epilogue) {
    const bool quantized = kind_is_quantized(weight.kind);
    if (!is(x, quantized ? Format::kBlocks : Format::kBf16) || !valid(y)) return kNoBuffer;
    const Buffer& to = buffer(y);
    if (y_column < 0 || y_column + (gated(epilogue) ? weight.n / 2 : weight.n) > to.width) return kNoBuffer;
    if (y_column > 0 && to.format == Format::kBlocks) return kNoBuffer;
    LinearArgs args{};
    args.weight = &weight;
    args.x = buffer(x).data;
    args.x_stride = buffer(x).stride;
    args.y = to.data + size_t(y_column) * (to.format == Format::kFloat32 ? 4 : 2);
    args.y_stride = to.stride;
    args.bias = bias;
    args.epilogue = epilogue;
    args.output = to.format == Format::kFloat32 ? Output::kFloat32 : to.format == Format::kBf16 ? Output::kBf16 : Output::kInt8;
    args.threads = pool_.threads();
    if (const char* error = linear_error(args)) return error;
    LinearOp& op = add_product<LinearOp>(weight);
    args.prepared = op.args.prepared;
    op.weight = weight;
    op.args = args;
    return nullptr;
}

const char* Program::quantize(int x, int y) {
    if (!valid(x) || buffer(x).format == Format::kBlocks || !is(y, Format::kBlocks)) return kNoBuffer;
    QuantizeArgs& args = add<QuantizeOp>().args;
    args.x = buffer(x).data;
    args.x_stride = buffer(x).stride;
    args.x_is_bf16 = buffer(x).format == Format::kBf16;
    args.y = reinterpret_cast<QuantBlock*>(buffer(y).data);
    args.y_stride = buffer(y).stride;
    args.k = buffer(x).width;
    return nullptr;
}

const char* Program::gate(int x, Epilogue activation, int out, int blocks) {
    if (!is(x, Format::kFloat32) || !gated(activation)) return kNoBuffer;
    if (out >= 0 ? !is(out, Format::kBf16) : !is(blocks, Format::kBlocks)) return kNoBuffer;
    GateArgs& args = add<GateOp>().args;
    args.gate_up = reinterpret_cast<const float*>(buffer(x).data);
    args.gate_up_stride = buffer(x).stride;
    args.activation = activation;
    args.width = buffer(x).width / 2;
    if (out >= 0) {
        args.out = reinterpret_cast<bf16*>(buffer(out).data);
        args.out_stride = buffer(out).stride;
    }
    if (blocks >= 0) {
        args.blocks = reinterpret_cast<QuantBlock*>(buffer(blocks).data);
        args.blocks_stride = buffer(blocks).stride;
    }
    return nullptr;
}

const char* Program::rope(int layer, int qkv, int q, const float* q_norm, const float* k_norm, float eps) {
    if (!is(qkv, Format::kFloat32) || !is(q, Format::kBf16)) return kNoBuffer;
    RopeOp& op = add<RopeOp>();
    op.layer = layer;
    op.args.qkv = reinterpret_cast<const float*>(buffer(qkv).data);
    op.args.ldqkv = int64_t(buffer(qkv).stride / sizeof(float));
    op.args.heads = spec_.heads;
    op.args.kv_heads = spec_.kv_heads;
    op.args.head_dim = spec_.head_dim;
    op.args.turns = spec_.turns;
    op.args.rotary_dim = spec_.rotary_dim;
    op.args.q_norm = q_norm;
    op.args.k_norm = k_norm;
    op.args.eps = eps;
    op.args.q = reinterpret_cast<bf16*>(buffer(q).data);
    op.args.ldq = int64_t(buffer(q).stride / sizeof(bf16));
    return nullptr;
}

const char* Program::attention(int layer, int q, int out, float scale, int window, float softcap) {
    if (!is(q, Format::kBf16) || !is(out, Format::kBf16)) return kNoBuffer;
    AttentionPlan* plan = plan_of(window);
    if (const char* error = attention_error(plan->shape)) return error;
    AttentionOp& op = add<AttentionOp>();
    op.layer = layer;
    op.args.plan = plan;
    op.args.q = reinterpret_cast<const bf16*>(buffer(q).data);
    op.args.ldq = int64_t(buffer(q).stride / sizeof(bf16));
    op.args.out = reinterpret_cast<bf16*>(buffer(out).data);
    op.args.ldo = int64_t(buffer(out).stride / sizeof(bf16));
    op.args.scale = scale;
    op.args.softcap = softcap;
    op.attends = true;
    plan->layers++;
    MergeOp& merge = add<MergeOp>();
    merge.attention = &op;
    merge.attends = true;
    return nullptr;
}

// Layers of one window cut their work alike.
AttentionPlan* Program::plan_of(int window) {
    for (const auto& plan : plans_)
        if (plan->window == window) return plan.get();
    plans_.push_back(std::make_unique<AttentionPlan>());
    plans_.back()->shape = {spec_.heads, spec_.kv_heads, spec_.head_dim, spec_.kv_kind};
    plans_.back()->window = window;
    return plans_.back().get();
}

const char* Program::select(int from, int to) {
    if (!valid(from) || !valid(to) || from == to) return kNoBuffer;
    if (buffer(from).stride != buffer(to).stride || buffer(from).format != buffer(to).format) return kNoBuffer;
    SelectOp& op = add<SelectOp>();
    op.args = {buffer(from).data, nullptr, 0, buffer(from).stride, buffer(to).data};
    selecting_ = true;
    return nullptr;
}

const char* Program::head(const Weight& weight, int x, float softcap) {
    if (!is(x, kind_is_quantized(weight.kind) ? Format::kBlocks : Format::kBf16)) return kNoBuffer;
    if (weight.n != spec_.vocabulary) return "the head has other than one row for each token of the vocabulary.";
    for (int first = 0; first < spec_.max_tokens; first += kHeadRows) {
        HeadOp& op = add_product<HeadOp>(weight);
        op.weight = weight;
        op.args.x_stride = buffer(x).stride;
        op.args.epilogue = Epilogue::kArgmax;
        op.args.softcap = softcap;
        op.args.threads = pool_.threads();
        op.x = buffer(x).data;
        op.first = first;
        op.memory = &head_;
        SampleOp& sample = add<SampleOp>();
        sample.head = &op;
        sample.samples = true;
    }
    return nullptr;
}

// ---- a step

const char* Program::check(const Batch& batch) const {
    int64_t tokens = 0;
    for (int i = 0; i < batch.row_count; i++) {
        const BatchRow& row = batch.rows[i];
        if (row.slot < 0 || row.slot >= spec_.slots) return "a row names a slot that does not exist.";
        if (row.start < 0 || row.length < 1 || int64_t(row.start) + row.length > spec_.max_positions)
            return "a row lies outside the positions that a sequence may have.";
        tokens += row.length;
        if (row.tokens < 0 ? row.length != 1 : int64_t(row.tokens) + row.length > batch.token_count)
            return "a row has other than one token id for each of its tokens.";
        if (batch.run[row.slot] < 1 || (row.start + row.length - 1) / batch.run[row.slot] >= batch.table_width)
            return "a row lies outside the runs that its slot has.";
    }
    if (tokens > spec_.max_tokens) return "a step has more tokens than its buffers hold.";
    for (int i = 0; i < batch.token_count; i++)
        if (batch.tokens[i] < 0 || batch.tokens[i] >= spec_.vocabulary) return "a token id lies outside the vocabulary.";
    for (int i = 0; i < batch.opened_count; i++)
        if (batch.opened[i].slot < 0 || batch.opened[i].slot >= spec_.slots) return "a slot is opened that does not exist.";
    return nullptr;
}

const char* Program::begin(const Batch& batch) {
    if (const char* error = check(batch)) return error;
    pool_.wake();
    began_s_ = seconds();
    began_ticks_ = ticks();
    busy_before_ = pool_.busy_ticks();
    steps_++;
    step_.batch = &batch;
    for (int i = 0; i < batch.opened_count; i++) {
        const Opened& opened = batch.opened[i];
        sampling_[size_t(opened.slot)] = {opened.temperature, opened.top_p, opened.top_k, opened.seed, opened.drawn};
    }
    take_rows(batch);
    KvView& view = step_.first_layer;
    step_.plane_bytes = batch.arena_tokens * view.token_stride;
    view.keys = batch.arena;
    view.values = batch.arena + step_.plane_bytes;
    view.table = batch.table;
    view.run = batch.run;
    view.width = batch.table_width;
    for (const auto& plan : plans_)
        attention_plan(*plan, plan->shape, step_.rows.data(), int(step_.rows.size()), plan->window, pool_.threads());
    for (size_t i = 0; i < ops_.size(); i++) phases_[i] = {ops_[i].get(), ops_[i]->begin(step_)};
    return nullptr;
}

void Program::take_rows(const Batch& batch) {
    step_.rows.clear();
    step_.tokens.clear();
    step_.selected.clear();
    step_.selected_tokens.clear();
    for (int i = 0; i < batch.row_count; i++) {
        const BatchRow& row = batch.rows[i];
        const int first = int(step_.tokens.size());
        step_.rows.push_back({row.slot, row.start, row.length, first});
        if (row.tokens < 0) {
            step_.tokens.push_back(last_sampled_[size_t(row.slot)]);
        } else {
            step_.tokens.insert(step_.tokens.end(), batch.tokens + row.tokens, batch.tokens + row.tokens + row.length);
        }
        if (row.wanted == Wanted::kNone) continue;
        const int last = first + row.length - 1;
        for (int token = row.wanted == Wanted::kAll && batch.logits ? first : last; token <= last; token++) {
            step_.selected.push_back({token == last ? &sampling_[size_t(row.slot)] : nullptr, row.slot, 0});
            step_.selected_tokens.push_back(token);
        }
    }
}

void Program::run(int first, int count) { pool_.run(phases_.data() + first, count); }

void Program::attend(int op, int row) {
    AttentionOp apart = static_cast<const AttentionOp&>(*ops_[size_t(op)]);
    apart.args.plan = &plan_apart(*apart.args.plan, row);
    apart.args.rows = &step_.rows[size_t(row)];
    MergeOp merge;
    merge.attention = &apart;
    Phase phases[] = {{&apart, attention_items(apart.args)}, {&merge, attention_merge_items(apart.args)}};
    pool_.run(phases, 2);
    phases_[size_t(op)].ended += phases[1].ended - phases[0].began;  // from 0: the sum of all rows
}

// A row alone is cut as if it were the whole batch. Layers of one window share that too.
AttentionPlan& Program::plan_apart(const AttentionPlan& together, int row) {
    PlanApart& apart = apart_[{&together, row}];
    if (apart.step != steps_) {
        attention_plan(apart.plan, together.shape, &step_.rows[size_t(row)], 1, together.window, pool_.threads());
        apart.step = steps_;
    }
    return apart.plan;
}

void Program::end(StepTimes& times) {
    int found = 0;
    for (const Selected& selected : step_.selected) {
        if (!selected.sampling) continue;
        step_.batch->sampled[found++] = selected.sampled;
        last_sampled_[size_t(selected.slot)] = selected.sampled;
        sampling_[size_t(selected.slot)].drawn++;
    }
    uint64_t sampling = 0, attention = 0;
    for (size_t i = 0; i < ops_.size(); i++) {
        if (phases_[i].items == 0) continue;
        const uint64_t spent = phases_[i].ended - phases_[i].began;
        if (ops_[i]->samples) sampling += spent;
        if (ops_[i]->attends) attention += spent;
    }
    times.total_s = seconds() - began_s_;
    times.ticks_per_s = double(ticks() - began_ticks_) / times.total_s;
    times.sample_s = double(sampling) / times.ticks_per_s;
    times.busy_s = double(pool_.busy_ticks() - busy_before_) / times.ticks_per_s;
    times.attention_s = double(attention) / times.ticks_per_s;
    times.kv_read_bytes = kv_read_bytes();
    step_.batch = nullptr;
}

int64_t Program::kv_read_bytes() const {
    int64_t tokens = 0;  // summed over the layers
    for (const auto& plan : plans_) {
        int64_t seen = 0;
        for (const Row& row : step_.rows) {
            const int first = plan->window > 0 ? std::max(0, row.start - plan->window + 1) : 0;  // that any of its queries sees
            seen += row.start + row.length - first;
        }
        tokens += seen * plan->layers;
    }
    return tokens * 2 * step_.first_layer.token_stride;
}

void Program::op_items(int32_t* items) const {
    for (size_t i = 0; i < ops_.size(); i++) items[i] = phases_[i].items;
}

void Program::op_ticks(double* spent) const {
    for (size_t i = 0; i < ops_.size(); i++)
        spent[i] = phases_[i].items > 0 ? double(phases_[i].ended - phases_[i].began) : 0.0;
}

}  // namespace octavo
