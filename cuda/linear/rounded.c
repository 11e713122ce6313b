/* rounded.c - products of inputs that are rounded to E4M3 (weight.rounds_input): the weights that
 * they take, and the rounding.
 *
 *   rows     W has a scale for each row, or one for all: x gets a scale for each row
 *   blocks   W has a scale for each FP8_BLOCK x FP8_BLOCK elements: x gets one for each FP8_BLOCK
 *            columns of a row
 *
 * The rounding kernel normalises x, too, where the product is of a norm.  It writes to memory that
 * the next product uses again.  W's scales are f32 on the device, and of rows there is one for each
 * row, so kernels know no other.
 *
 * Thread: engine.  Memory: for the largest input seen or reserved. */
#include <stdlib.h>

#include "cuda/host/internal.h"
#include "cuda/linear/product.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/step.h"

enum { SCALES_ALIGN = 256 };
enum { ROUNDS_FROM = 1 }; /* rows */

void rounded_open(struct cuda_backend *cuda) {
    const struct product_device *d = &cuda->products;
    const bool can = d->wide.n_clusters > 0 && d->n_fp8_clusters > 0 && !cuda->batch_invariant;
    cuda->base.rounds_inputs_from =
        can && cuda->base.input_rounding != ROUND_NEVER ? ROUNDS_FROM : 0;
}

static bool has_blocks(const struct weight_format *format) {
    return format->block_cols > 0;
}

bool cuda_rounds(const struct backend *be, const struct weight *w) {
    const struct weight_format *f = &w->format;
    const bool is_f32 = f->scale == SCALE_F32 || f->scale == SCALE_F16 || f->scale == SCALE_BF16,
               blocks_fit = has_blocks(f) ? f->block_rows == FP8_BLOCK && f->block_cols == FP8_BLOCK
                                          : f->block_rows <= 1;
    return be->rounds_inputs_from > 0 && f->element == ELEMENT_E4M3 && is_f32 && !f->has_min &&
           blocks_fit && w->n_stacked == 1 && w->cols % FP8_BLOCK == 0 &&
           w->rows % (has_blocks(f) ? FP8_BLOCK : FP8_ROWS_ALIGN) == 0;
}

int weight_widen_scales(const struct weight *host, struct weight *out, struct error *err) {
    const bool blocks = has_blocks(&host->format);
    const size_t n_given = (size_t)weight_n_scales(host), n = blocks ? n_given : host->rows;
    float *scales = malloc(n * sizeof(*scales));
    if (!scales) return error_set(err, ERR_NOMEM, "cuda: no memory for the scales of a weight");
    for (size_t i = 0; i < n; i++) scales[i] = weight_scale_at(host, n_given == 1 ? 0 : i);
    *out = *host;
    out->scales = scales;
    out->format.scale = SCALE_F32;
    if (!blocks) out->format.block_rows = 1;
    return 0;
}

/* ---- the input ---- */

/* Returns the bytes of n_in columns of rows in E4M3: where their scales begin. */
static size_t code_bytes(size_t n_rows, size_t n_in) {
    return round_up(n_rows * n_in, SCALES_ALIGN);
}

/* Returns the bytes of codes and scales. */
static size_t input_bytes(size_t n_rows, size_t n_in) {
    const size_t n_scales = round_up(n_rows, FP8_SCALE_ROWS) * div_up(n_in, FP8_BLOCK);
    return code_bytes(n_rows, n_in) + (n_scales + FP8_PAST_ROWS) * sizeof(float);
}

int rounded_reserve(struct cuda_backend *cuda, const struct step_limits *limits,
                    struct error *err) {
    struct rounded_memory *m = &cuda->rounded;
    if (m->most_columns == 0) return 0;
    return device_reserve(cuda, &m->memory, &m->bytes,
                          input_bytes(limits->max_rows, m->most_columns), err);
}

/* Makes *p the product of its input in E4M3, which is at `codes` with its scales behind them. */
static void take_codes(char *codes, size_t scales_at, struct product *p) {
    p->x = codes;
    p->x_scales = (float *)(codes + scales_at);
    p->x_scale_stride =
        has_blocks(&p->w_format) ? (uint32_t)round_up(p->n_rows, FP8_SCALE_ROWS) : 0;
    p->norm_weight = NULL;
}

bool product_rounds(const struct cuda_backend *cuda, const struct product *p) {
    static _Alignas(SCALES_ALIGN) char any[SCALES_ALIGN]; /* only its alignment matters */
    struct product rounded = *p;
    bool fits = p->rounds_input && p->n_rows >= cuda->base.rounds_inputs_from;
    take_codes(any, 0, &rounded);
    rounded.gated = false;
    rounded.n_parts = 1;
    for (uint32_t i = 0; i < p->n_parts && fits; i++) {
        rounded.parts[0] = p->parts[i];
        rounded.parts[0].joins_next = false;
        fits = product_choose(&cuda->products, &rounded) != NULL;
    }
    return fits;
}

/* Rounds the input as params say, whose codes and scales it sets, and makes *p a product of it. */
static int round_input(struct cuda_backend *cuda, struct product *p, struct quantise_params *params,
                       struct error *err) {
    struct rounded_memory *m = &cuda->rounded;
    int rc = device_reserve(cuda, &m->memory, &m->bytes, input_bytes(p->n_rows, p->n_in), err);
    if (rc) return rc;
    m->codes = m->memory;
    take_codes(m->codes, code_bytes(p->n_rows, p->n_in), p);
    params->codes = m->codes;
    params->scales = (float *)p->x_scales;
    params->n_rows = p->n_rows;
    params->dim = p->n_in;
    params->scale_stride = p->x_scale_stride;
    params->most = p->input_most;
    return cuda_check(cuda, launch_quantise(params, launch_of(cuda)), "rounding activations", err);
}

int product_round(struct cuda_backend *cuda, struct product *p, struct error *err) {
    struct rounded_memory *m = &cuda->rounded;
    struct quantise_params params = {
        .x = p->x, .norm_weight = p->norm_weight, .norm_element = p->norm_dtype, .eps = p->eps};
    const bool is_there = m->of && m->of == p->x;
    m->of = NULL;
    if (!is_there) return round_input(cuda, p, &params, err);
    take_codes(m->codes, code_bytes(p->n_rows, p->n_in), p);
    return 0;
}

/* Returns the product that reads what the gate makes; its parts are none if that rounds nothing. */
static struct product product_behind(const struct gated_args *args) {
    const struct weight *next = args->next;
    struct product p = {
        .x = args->out, .n_rows = args->n_rows, .n_in = args->gate->rows, .n_parts = 1};
    if (!next || !next->rounds_input) return p;
    p.w_format = next->format;
    p.rounds_input = true;
    p.input_most = next->input_most;
    p.parts[0] = (struct product_part){
        .w = next->data, .scales = next->scales, .y_stride = next->rows, .n_out = next->rows};
    return p;
}

/* Chooses args->out for the codes, of which they take less than half, and for the scales behind
 * them. */
void gated_round(const struct cuda_backend *cuda, const struct gated_args *args,
                 struct product *p) {
    const struct product behind = product_behind(args);
    const struct rounded_result wanted = {
        .codes = args->out,
        .scales = (float *)((char *)args->out + code_bytes(p->n_rows, behind.n_in)),
        .scale_stride = (uint32_t)round_up(p->n_rows, FP8_SCALE_ROWS),
        .most = behind.input_most};
    const struct product_kernel *kernel = product_choose(&cuda->products, p);
    if (kernel && kernel->rounds && has_blocks(&p->w_format) && has_blocks(&behind.w_format) &&
        product_rounds(cuda, &behind))
        p->rounded = wanted;
}

void gated_rounded(struct cuda_backend *cuda, const struct gated_args *args,
                   const struct product *p) {
    if (!p->rounded.codes) return;
    cuda->rounded.of = args->out;
    cuda->rounded.codes = args->out;
}

int gate_mul_or_round(struct cuda_backend *cuda, const struct gated_args *args, struct error *err) {
    const uint32_t n = args->gate->rows;
    const struct gate_mul_params plain = {.gate_up = args->gate_up,
                                          .out = args->out,
                                          .n_rows = args->n_rows,
                                          .dim = n,
                                          .kind = args->kind};
    struct quantise_params params = {.x = args->gate_up, .gated = true, .kind = args->kind};
    struct product p = product_behind(args);
    if (!product_rounds(cuda, &p))
        return cuda_check(cuda, launch_gate_mul(&plain, launch_of(cuda)), "gate_mul", err);
    const int rc = round_input(cuda, &p, &params, err);
    if (!rc) cuda->rounded.of = args->out;
    return rc;
}
