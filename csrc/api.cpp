// The C border of the engine: what octavo/native/library.py calls. Counts, strides and struct layouts there mirror these.
//
// Functions that can fail return nullptr, or why they failed, as a sentence that lives as long as the library.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "amx.h"
#include "pool.h"
#include "program.h"
#include "weight.h"

#define OCTAVO_API extern "C" __attribute__((visibility("default")))

using namespace octavo;

#ifndef OCTAVO_ISA_NAME
#define OCTAVO_ISA_NAME "baseline"
#endif

// Raised whenever a function or a struct at this border changes.
OCTAVO_API int octavo_abi_version() { return 3; }
OCTAVO_API const char* octavo_isa() { return OCTAVO_ISA_NAME; }

// To be called once, before anything that computes.
OCTAVO_API const char* octavo_start() {
#if defined(OCTAVO_AMX)
    if (!amx_allow()) return "the operating system does not let this process use AMX.";
#endif
    return nullptr;
}

OCTAVO_API Pool* octavo_pool_new(const int32_t* cpus, int count) { return new Pool(std::vector<int>(cpus, cpus + count)); }
OCTAVO_API void octavo_pool_free(Pool* pool) { delete pool; }

namespace {

struct PackWork : Work {
    explicit PackWork(const PackArgs& args) : args_(args) {}
    void item(int item, Scratch& scratch) override { pack_item(args_, item, scratch); }
    const PackArgs& args_;
};

}  // namespace

// Packs a weight on all threads.
OCTAVO_API const char* octavo_pool_pack(Pool* pool, const PackArgs* args) {
    if (const char* error = pack_error(*args)) return error;
    PackWork work(*args);
    Phase phase{&work, pack_items(*args)};
    pool->run(&phase, 1);
    return nullptr;
}

OCTAVO_API Program* octavo_program_new(Pool* pool, const ProgramSpec* spec) { return new Program(*pool, *spec); }
OCTAVO_API void octavo_program_free(Program* program) { delete program; }

OCTAVO_API int octavo_program_buffer(Program* program, int width, Format format) { return program->add_buffer(width, format); }
OCTAVO_API const char* octavo_program_embed(Program* program, const Weight* weight, float scale, int out) {
    return program->embed(*weight, scale, out);
}
OCTAVO_API const char* octavo_program_norm(Program* program, int residual, int delta, const float* delta_weight, const float* weight,
                                           float eps, int out, int blocks) {
    return program->norm(residual, delta, delta_weight, weight, eps, out, blocks);
}
OCTAVO_API const char* octavo_program_linear(Program* program, const Weight* weight, const float* bias, int x, int y, int y_column,
                                             Epilogue epilogue) {
    return program->linear(*weight, bias, x, y, y_column, epilogue);
}
OCTAVO_API const char* octavo_program_quantize(Program* program, int x, int y) { return program->quantize(x, y); }
OCTAVO_API const char* octavo_program_gate(Program* program, int x, Epilogue activation, int out, int blocks) {
    return program->gate(x, activation, out, blocks);
}
OCTAVO_API const char* octavo_program_rope(Program* program, int layer, int qkv, int q, const float* q_norm, const float* k_norm,
                                           float eps) {
    return program->rope(layer, qkv, q, q_norm, k_norm, eps);
}
OCTAVO_API const char* octavo_program_attention(Program* program, int layer, int q, int out, float scale, int window, float softcap) {
    return program->attention(layer, q, out, scale, window, softcap);
}
OCTAVO_API const char* octavo_program_select(Program* program, int from, int to) { return program->select(from, to); }
OCTAVO_API const char* octavo_program_head(Program* program, const Weight* weight, int x, float softcap) {
    return program->head(*weight, x, softcap);
}
OCTAVO_API int octavo_program_ops(const Program* program) { return program->op_count(); }

// A whole step.
OCTAVO_API const char* octavo_step(Program* program, const Batch* batch, StepTimes* times) {
    if (const char* error = program->begin(*batch)) return error;
    program->run(0, program->op_count());
    program->end(*times);
    return nullptr;
}

// The same in pieces: begin, the operations in order, end. Any of them are a call together, those without items may be left out; an
// attention, which is two operations in a row, is one of these calls or one `attend` for each row of the batch.
OCTAVO_API const char* octavo_step_begin(Program* program, const Batch* batch) { return program->begin(*batch); }
OCTAVO_API void octavo_step_items(const Program* program, int32_t* items) { program->op_items(items); }
OCTAVO_API void octavo_step_run(Program* program, int first, int count) { program->run(first, count); }
OCTAVO_API void octavo_step_attend(Program* program, int op, int row) { program->attend(op, row); }
OCTAVO_API void octavo_step_end(Program* program, StepTimes* times) { program->end(*times); }

// Ticks that each operation of the last step took: StepTimes has their rate.
OCTAVO_API void octavo_op_ticks(const Program* program, double* spent) { program->op_ticks(spent); }

// A row of logits and how it is sampled, for tests against the definition.
OCTAVO_API int32_t octavo_draw(const float* logits, int vocabulary, const Sampling* sampling) {
    if (!draws(*sampling)) return int32_t(std::max_element(logits, logits + vocabulary) - logits);
    Scratch scratch;
    return draw(logits, vocabulary, *sampling, scratch);
}
