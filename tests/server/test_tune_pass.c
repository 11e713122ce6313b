/* test_tune_pass.c - attention measured in the middle of the default model.  Recall is that of the
 * visited keys, the tokens' scores in the first layer are what its weights say, and no later layer
 * notices. */
#include <math.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/vec.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/model/model.h"
#include "engine/tune/tune_pass.h"
#include "tests/test.h"

enum { N_TOKENS = 700, N_HEADS = 8, N_VOCAB = 8000, LAYER = 2, DEEP_LAYER = 8, N_SELECTED = 128 };
static const float NEVER_DENSE = 2;

struct rig {
    struct backend *be;
    struct tune_pass *pass;
    uint32_t tokens[N_TOKENS];
};

/* rows: of a slice; synthetic: as in struct attn_sparse. */
static void open_lines(struct rig *rig, uint32_t rows, uint32_t synthetic) {
    struct error err = {0};
    const struct cpu_config cpu = {.n_threads = 2};
    assert_int_equal(cpu_backend_create(&rig->be, &cpu, &err), 0);
    const struct engine_config config = {.model_dir = MODEL_DIR,
                                         .backend = rig->be,
                                         .max_batched_tokens = rows,
                                         .kv_format = PAGE_F32};
    if (tune_pass_create(&rig->pass, &config, N_TOKENS, N_SELECTED, synthetic, &err))
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        rig->tokens[i] = (uint32_t)(rng_uniform(5, i % 300) * N_VOCAB); /* text that repeats */
    tune_pass_begin(rig->pass, rig->tokens, N_TOKENS);
}

static void open_rig(struct rig *rig, uint32_t rows) {
    open_lines(rig, rows, 0);
}

static void close_rig(struct rig *rig) {
    tune_pass_destroy(rig->pass);
    rig->be->ops->destroy(rig->be);
}

struct seen {
    float recall[N_HEADS], density[N_HEADS];
};

/* All heads with one pattern, in the layer that was entered. */
static struct seen look(struct rig *rig, enum attn_pattern_kind kind, uint32_t p1, uint32_t p2) {
    struct attn_pattern heads[N_HEADS];
    struct seen seen;
    struct error err = {0};
    double seconds = 0;
    struct tune_run run = {.recall = seen.recall, .density = seen.density};
    for (uint32_t h = 0; h < N_HEADS; h++) heads[h] = (struct attn_pattern){kind, p1, p2};
    assert_int_equal(tune_pass_dense(rig->pass, &seconds, &err), 0);
    assert_int_equal(tune_pass_sparse(rig->pass, heads, NEVER_DENSE, &run, &err), 0);
    assert_true(seconds > 0 && run.index_s > 0 && run.attention_s > 0);
    return seen;
}

static void enter(struct rig *rig, uint32_t layer) {
    struct error err = {0};
    if (tune_pass_enter(rig->pass, layer, &err)) fail_msg("%s", err.text);
}

TEST(what_visits_everything_recalls_everything) {
    struct rig rig;
    open_rig(&rig, 256);
    enter(&rig, 0);
    const struct seen all = look(&rig, PATTERN_A_SHAPE, 0, N_TOKENS);
    for (uint32_t h = 0; h < N_HEADS; h++) {
        assert_true(fabs(all.recall[h] - 1.0) < 1e-5);
        assert_true(all.density[h] == 1);
    }
    close_rig(&rig);
}

TEST(larger_patterns_recall_more) {
    struct rig rig;
    open_rig(&rig, 256);
    enter(&rig, 0);
    const struct seen few = look(&rig, PATTERN_A_SHAPE, 16, 100),
                      more = look(&rig, PATTERN_A_SHAPE, 16, 300);
    for (uint32_t h = 0; h < N_HEADS; h++) {
        assert_true(few.recall[h] > 0.01 && few.recall[h] < more.recall[h]);
        assert_true(more.recall[h] < 1 && few.density[h] < more.density[h]);
    }
    close_rig(&rig);
}

/* Which is what a fit asks for, again and again. */
TEST(density_is_known_without_attention) {
    struct rig rig;
    struct error err = {0};
    struct attn_pattern heads[N_HEADS];
    float density[N_HEADS];
    open_rig(&rig, 256);
    enter(&rig, 0);
    for (uint32_t h = 0; h < N_HEADS; h++)
        heads[h] = (struct attn_pattern){PATTERN_VERTICAL_SLASH, 10, 20 + 10 * h};
    assert_int_equal(tune_pass_density(rig.pass, heads, density, &err), 0);
    for (uint32_t h = 0; h < N_HEADS; h++) {
        const struct seen seen = look(&rig, PATTERN_VERTICAL_SLASH, 10, 20 + 10 * h);
        assert_true(density[h] == seen.density[h] && density[h] < 1);
    }
    close_rig(&rig);
}

static double mean(const float *values) {
    double sum = 0;
    for (uint32_t h = 0; h < N_HEADS; h++) sum += values[h] / N_HEADS;
    return sum;
}

/* So that an index that does not look at the prompt would show.  The text repeats after 300 tokens:
 * lines that were found know, those that were drawn do not, and the nearest 250 cannot. */
TEST(lines_are_looked_for) {
    struct rig found_rig, sampled_rig;
    open_lines(&found_rig, 256, 0);
    open_lines(&sampled_rig, 256, 7);
    for (uint32_t l = 0; l <= DEEP_LAYER; l++) {
        enter(&found_rig, l);
        enter(&sampled_rig, l);
    }
    const struct seen found = look(&found_rig, PATTERN_VERTICAL_SLASH, 30, 120),
                      drawn = look(&sampled_rig, PATTERN_VERTICAL_SLASH, 30, 120),
                      near = look(&found_rig, PATTERN_A_SHAPE, 30, 250);
    assert_true(mean(found.recall) > mean(drawn.recall) + 0.2);
    assert_true(mean(found.recall) > mean(near.recall) + 0.1);
    close_rig(&found_rig);
    close_rig(&sampled_rig);
}

/* Where slices end does not matter, nor what was tried in the layers before. */
TEST(measurements_change_nothing_downstream) {
    struct rig measured, untouched;
    open_rig(&measured, 256);
    open_rig(&untouched, 1024);
    for (uint32_t l = 0; l <= LAYER; l++) {
        enter(&measured, l);
        enter(&untouched, l);
        if (l < LAYER) look(&measured, PATTERN_VERTICAL_SLASH, 30, 100);
    }
    const struct seen a = look(&measured, PATTERN_VERTICAL_SLASH, 60, 200),
                      b = look(&untouched, PATTERN_VERTICAL_SLASH, 60, 200);
    assert_memory_equal(a.density, b.density, sizeof(a.density));
    for (uint32_t h = 0; h < N_HEADS; h++) {
        assert_true(a.recall[h] > 0 && a.recall[h] <= 1);
        assert_true(fabsf(a.recall[h] - b.recall[h]) < 1e-5f);
    }
    close_rig(&measured);
    close_rig(&untouched);
}

/* ---- choices ---- */

enum { DIM = 512, HEAD_DIM = 64, GROUP = 4, ROW = 690, N_CANDIDATES = 576 };

struct choice {
    float token_scores[N_CANDIDATES];
    uint32_t chosen[N_SELECTED];
};

static struct choice choose(struct rig *rig) {
    struct choice choice;
    struct error err = {0};
    const struct tune_look look = {ROW, N_SELECTED, N_CANDIDATES, choice.chosen,
                                   choice.token_scores};
    if (tune_pass_select(rig->pass, &look, &err)) fail_msg("%s", err.text);
    return choice;
}

/* What row `head` of a projection of the first layer makes of a token: normed, projected, rotated
 * to its position. */
static void project(const struct model *m, const struct weight *w, uint32_t head, uint32_t token,
                    uint32_t position, double *out) {
    const struct weight *norm = &m->layers[0].attn_norm;
    double x[DIM], squares = 0, flat[HEAD_DIM] = {0};
    for (uint32_t i = 0; i < DIM; i++) {
        x[i] = load_as_f32(m->embedding.data, (size_t)token * DIM + i, m->embedding.format.element);
        squares += x[i] * x[i];
    }
    for (uint32_t i = 0; i < DIM; i++)
        x[i] *= load_as_f32(norm->data, i, norm->format.element) /
                sqrt(squares / DIM + (double)m->config.norm_eps);
    for (uint32_t d = 0; d < HEAD_DIM; d++)
        for (uint32_t i = 0; i < DIM; i++)
            flat[d] += x[i] * load_as_f32(w->data, ((size_t)head * HEAD_DIM + d) * DIM + i,
                                          w->format.element);
    for (uint32_t d = 0; d < HEAD_DIM / 2; d++) {
        const double angle = position * m->config.inv_freq[d], c = cos(angle), s = sin(angle);
        out[d] = flat[d] * c - flat[d + HEAD_DIM / 2] * s;
        out[d + HEAD_DIM / 2] = flat[d + HEAD_DIM / 2] * c + flat[d] * s;
    }
}

/* The largest softmax weight of any head. */
static void weigh(const struct rig *rig, const struct model *m, double *token_scores) {
    static double keys[ROW + 1][HEAD_DIM];
    double q[HEAD_DIM], p[ROW + 1];
    for (uint32_t h = 0; h < N_HEADS; h++) {
        double sum = 0;
        project(m, &m->layers[0].q, h, rig->tokens[ROW], ROW, q);
        for (uint32_t t = 0; t <= ROW; t++) {
            if (h % GROUP == 0) project(m, &m->layers[0].k, h / GROUP, rig->tokens[t], t, keys[t]);
            p[t] = 0;
            for (uint32_t d = 0; d < HEAD_DIM; d++) p[t] += q[d] * keys[t][d];
            sum += p[t] = exp(p[t] / sqrt(HEAD_DIM));
        }
        for (uint32_t t = 0; t < N_CANDIDATES; t++)
            token_scores[t] = fmax(h ? token_scores[t] : 0, p[t] / sum);
    }
}

TEST(a_token_scores_its_largest_weight) {
    struct rig rig;
    struct error err = {0};
    struct model *model = NULL;
    double expected[N_CANDIDATES];
    open_rig(&rig, 256);
    if (model_load(&model, MODEL_DIR, NULL, rig.be, &err)) fail_msg("%s", err.text);
    weigh(&rig, model, expected);
    enter(&rig, 0);
    const struct choice choice = choose(&rig);
    for (uint32_t t = 0; t < N_CANDIDATES; t++)
        assert_true(fabs(choice.token_scores[t] - expected[t]) < 1e-3 * expected[t]);
    model_destroy(model, rig.be);
    close_rig(&rig);
}

/* In a layer that others were measured before, and whatever slices were. */
TEST(the_best_are_chosen) {
    struct rig measured, untouched;
    open_rig(&measured, 256);
    open_rig(&untouched, 1024);
    for (uint32_t l = 0; l <= LAYER; l++) {
        enter(&measured, l);
        enter(&untouched, l);
        if (l < LAYER) choose(&measured);
    }
    const struct choice a = choose(&measured), b = choose(&untouched);
    bool is_chosen[N_CANDIDATES] = {false};
    float least = INFINITY;
    for (uint32_t i = 0; i < N_SELECTED; i++) {
        assert_true(a.chosen[i] < N_CANDIDATES && !is_chosen[a.chosen[i]]);
        is_chosen[a.chosen[i]] = true;
        least = fminf(least, a.token_scores[a.chosen[i]]);
    }
    for (uint32_t t = 0; t < N_CANDIDATES; t++) {
        assert_true(is_chosen[t] || a.token_scores[t] <= least);
        assert_true(fabsf(a.token_scores[t] - b.token_scores[t]) <= 1e-3f * b.token_scores[t]);
    }
    close_rig(&measured);
    close_rig(&untouched);
}

TEST(a_backend_without_sparse_attention_is_refused) {
    struct rig rig;
    struct error err = {0};
    struct tune_pass *pass = NULL;
    open_rig(&rig, 256);
    struct backend_ops dense_only = *rig.be->ops;
    dense_only.sparse = NULL;
    struct backend be = *rig.be;
    be.ops = &dense_only;
    const struct engine_config config = {.model_dir = MODEL_DIR, .backend = &be};
    assert_int_equal(tune_pass_create(&pass, &config, N_TOKENS, 0, 0, &err), ERR_UNSUPPORTED);
    assert_null(pass);
    close_rig(&rig);
}
