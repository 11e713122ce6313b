/* software_tiles.h - the instructions of AMX that amx.c uses, in C, so that it is tested where no
 * processor has them.  The compiler is told to include it before amx.c (see meson.build).
 *
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, LDTILECFG,
 * TILELOADD, TILESTORED and TDPBF16PS. */
#ifndef TESTS_CPU_SOFTWARE_TILES_H
#define TESTS_CPU_SOFTWARE_TILES_H

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/vec.h"

struct software_tiles {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t n_rows[16];
    } shapes;
    uint16_t rows[8][16][32];
};

static _Thread_local struct software_tiles software_tiles;

static void software_config(const void *shapes) {
    memcpy(&software_tiles.shapes, shapes, sizeof(software_tiles.shapes));
    memset(software_tiles.rows, 0, sizeof(software_tiles.rows));
}

static void software_zero(int tile) {
    memset(software_tiles.rows[tile], 0, sizeof(software_tiles.rows[tile]));
}

static void software_load(int tile, const void *from, size_t stride) {
    struct software_tiles *t = &software_tiles;
    software_zero(tile);
    for (int r = 0; r < t->shapes.n_rows[tile]; r++)
        memcpy(t->rows[tile][r], (const char *)from + r * stride, t->shapes.row_bytes[tile]);
}

static void software_store(int tile, void *to, size_t stride) {
    const struct software_tiles *t = &software_tiles;
    for (int r = 0; r < t->shapes.n_rows[tile]; r++)
        memcpy((char *)to + r * stride, t->rows[tile][r], t->shapes.row_bytes[tile]);
}

/* Sums even and odd products apart, then adds both to C.  Tiles that do not fit each other are an
 * invalid instruction. */
static void software_multiply(int c, int a, int b) {
    struct software_tiles *t = &software_tiles;
    if (t->shapes.n_rows[c] != t->shapes.n_rows[a] ||
        t->shapes.row_bytes[c] != t->shapes.row_bytes[b] ||
        t->shapes.row_bytes[a] != 4 * t->shapes.n_rows[b])
        abort();
    for (int m = 0; m < t->shapes.n_rows[c]; m++) {
        for (int n = 0; n < t->shapes.row_bytes[c] / 4; n++) {
            float sums[2] = {0}, sum;
            for (int k = 0; k < t->shapes.row_bytes[a] / 4; k++)
                for (int half = 0; half < 2; half++)
                    sums[half] += bf16_to_f32(t->rows[a][m][2 * k + half]) *
                                  bf16_to_f32(t->rows[b][k][2 * n + half]);
            memcpy(&sum, &t->rows[c][m][2 * n], sizeof(sum));
            sum += sums[0] + sums[1];
            memcpy(&t->rows[c][m][2 * n], &sum, sizeof(sum));
        }
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(shapes) software_config(shapes)
#define _tile_release() ((void)0)
#define _tile_zero(tile) software_zero(tile)
#define _tile_loadd(tile, from, stride) software_load(tile, from, stride)
#define _tile_stored(tile, to, stride) software_store(tile, to, stride)
#define _tile_dpbf16ps(c, a, b) software_multiply(c, a, b)

#endif
