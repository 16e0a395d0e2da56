#pragma once

#include <cstring>

#include "amx.h"
#include "attention_products_bf16.h"

namespace octavo {

// Both products on AMX tiles, on the same packed forms. A strip is as many rows as a tile has; rows that are not there are
// computed from whatever lies in memory and left out. Decoding goes the same way: a row is the same sum whatever the others hold.
struct AmxProducts : Bf16Products {
    static constexpr int kStrip = 16;
    static constexpr int kDirectRows = 0;

    struct Setup {
        Setup() {
            TileConfig config;
            for (int tile = 0; tile < 8; ++tile) config.shape(tile, 16, 64);
            TILE_CONFIG(&config);
        }
        ~Setup() { TILE_RELEASE(); }
    };

    static void scores(const Packed* queries, int, const Packed* keys, int head_dim, int begin, int end, float* scores) {
        const int width = padded(head_dim);
        for (int token = begin; token < end; token += 64) {
            const bool four = token + 64 <= end;  // blocks of 16 tokens; else two
            const Packed* block = keys + int64_t(token) * width;
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_ZERO(2);
            TILE_ZERO(3);
            for (int dim = 0; dim < width; dim += 32) {
                TILE_LOAD(4, queries + dim, width * 2);
                TILE_LOAD(5, block + dim * 16, 64);
                TILE_DPBF16(0, 4, 5);
                TILE_LOAD(6, block + 16 * width + dim * 16, 64);
                TILE_DPBF16(1, 4, 6);
                if (four) {
                    TILE_LOAD(5, block + 32 * width + dim * 16, 64);
                    TILE_DPBF16(2, 4, 5);
                    TILE_LOAD(6, block + 48 * width + dim * 16, 64);
                    TILE_DPBF16(3, 4, 6);
                }
            }
            TILE_STORE(0, scores + token, kTile * 4);
            TILE_STORE(1, scores + token + 16, kTile * 4);
            if (four) {
                TILE_STORE(2, scores + token + 32, kTile * 4);
                TILE_STORE(3, scores + token + 48, kTile * 4);
            }
        }
    }

    static void weigh(const Packed* p, int rows, const Packed* values, int head_dim, int begin, int end, float* out, int ld) {
        const int width = padded(head_dim);
        alignas(64) float whole[16 * 64];
        for (int dim = 0; dim < width; dim += 64) {
            const bool four = dim + 64 <= width;  // of 16 dimensions each; else two
            // Rows beyond the last would overwrite what is not theirs.
            float* to = rows == 16 ? out + dim : whole;
            const int to_ld = rows == 16 ? ld : 64;
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_ZERO(2);
            TILE_ZERO(3);
            for (int token = begin; token < end; token += 32) {
                const Packed* pairs = values + int64_t(token) * width + dim * 2;
                TILE_LOAD(4, p + token, kTile * 2);
                TILE_LOAD(5, pairs, width * 4);
                TILE_DPBF16(0, 4, 5);
                TILE_LOAD(6, pairs + 32, width * 4);
                TILE_DPBF16(1, 4, 6);
                if (four) {
                    TILE_LOAD(5, pairs + 64, width * 4);
                    TILE_DPBF16(2, 4, 5);
                    TILE_LOAD(6, pairs + 96, width * 4);
                    TILE_DPBF16(3, 4, 6);
                }
            }
            TILE_STORE(0, to, to_ld * 4);
            TILE_STORE(1, to + 16, to_ld * 4);
            if (four) {
                TILE_STORE(2, to + 32, to_ld * 4);
                TILE_STORE(3, to + 48, to_ld * 4);
            }
            if (rows == 16) continue;
            const size_t bytes = (four ? 64 : 32) * sizeof(float);
            for (int r = 0; r < rows; ++r) std::memcpy(out + int64_t(r) * ld + dim, whole + r * 64, bytes);
        }
    }
};

}  // namespace octavo
