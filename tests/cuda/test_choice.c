/* test_choice.c - which kernel computes a product, on devices that need not be there. */
#include <stdio.h>
#include <string.h>

#include "cuda/linear/packed_cut.h"
#include "cuda/linear/product.h"
#include "cuda/linear/slab.h"
#include "tests/cuda/product_choices.h"
#include "tests/test.h"

/* An H100 and an H200 have 132 multiprocessors: 66 clusters. */
static struct product_device device_of(enum choice_device name) {
    struct product_device device = {.batch_invariant = name == H200_INVARIANT,
                                    .streams = name != A100,
                                    .wide_from = name == A100 || name == H100 ? 17 : 9,
                                    .wide = {.fast_memory = name != A100 && name != H100}};
    if (name != A100 && name != H200_WITHOUT_WIDE) device.wide.n_clusters = 66;
    if (name != A100 && name != H200_WITHOUT_GATED) device.n_gated_clusters = 66;
    if (name != A100) device.n_fp8_clusters = 66;
    return device;
}

static enum element dtype_of(const char *name) {
    if (!name || strcmp(name, "bf16") == 0) return ELEMENT_BF16;
    return strcmp(name, "f16") == 0 ? ELEMENT_F16 : ELEMENT_F32;
}

/* Weights, biases and results are aligned as the backend's memory is; results lie side by side. */
static struct product product_of(const struct choice_shape *s, uint32_t n_rows) {
    static const _Alignas(64) char memory[64];
    struct product p = {.x = memory,
                        .n_rows = n_rows,
                        .n_in = s->n_in,
                        .w_format = {.element = dtype_of(s->dtype)},
                        .norm_dtype = dtype_of(s->norm),
                        .norm_weight = s->norm ? memory : NULL,
                        .gated = s->gated,
                        .y_f32 = s->y_f32};
    const uint32_t n_parts = s->gated ? 2 : LINEAR_MAX_PARTS;
    uintptr_t y = (uintptr_t)memory;
    size_t width = 0;
    for (uint32_t i = 0; i < LINEAR_MAX_PARTS; i++) width += s->n_out[i];
    for (; p.n_parts < n_parts && (s->gated || s->n_out[p.n_parts]); p.n_parts++) {
        const uint32_t n_out = s->n_out[s->gated ? 0 : p.n_parts];
        p.parts[p.n_parts] = (struct product_part){.w = memory,
                                                   .bias = s->bias ? memory : NULL,
                                                   .bias_dtype = dtype_of(s->bias),
                                                   .y = (void *)y, /* NOLINT */
                                                   .y_stride = width,
                                                   .n_out = n_out,
                                                   .joins_next = s->joined};
        y += n_out * (s->y_f32 ? sizeof(float) : sizeof(uint16_t));
    }
    return p;
}

/* Says how a product is computed, as linear.c does. */
static void describe(char *out, size_t size, const struct product_device *device,
                     struct product *p) {
    const struct product_kernel *kernel = product_choose(device, p);
    const bool is_apart = p->norm_weight && !(kernel && kernel->takes_norm);
    if (is_apart) {
        p->norm_weight = NULL;
        kernel = product_choose(device, p);
        if (p->gated && kernel && kernel->takes_norm) kernel = NULL;
    }
    snprintf(out, size, "%s%s", is_apart ? "norm+" : "", kernel ? kernel->name : "parts");
}

static uint32_t next_rows(uint32_t n) {
    return n < 640 ? n + 1 : n < 2048 ? n + 64 : n + 1024;
}

static void check_choice(const struct choice_shape *shape, const char *recorded,
                         enum choice_device name) {
    const struct product_device device = device_of(name);
    char found[1024], last[64] = "", now[64];
    size_t at = 0;
    for (uint32_t n = 1; n <= 8192; n = next_rows(n)) {
        struct product p = product_of(shape, n);
        describe(now, sizeof(now), &device, &p);
        if (strcmp(now, last) == 0) continue;
        at += (size_t)snprintf(found + at, sizeof(found) - at, "%s%u %s", at ? ", " : "", n, now);
        assert_true(at < sizeof(found));
        strcpy(last, now);
    }
    if (strcmp(found, recorded) != 0)
        fail_msg("device %d, %u -> %u: %s\n  recorded: %s", name, shape->n_in, shape->n_out[0],
                 found, recorded);
}

TEST(kernels_are_the_recorded_ones) {
    size_t n = 0;
    for (size_t i = 0; i < COUNT(choices); i++)
        for (const struct choice_shape *s = choices[i].shapes; s->n_in > 0; s++, n++)
            for (int device = 0; device < N_CHOICE_DEVICES; device++)
                check_choice(s, choices[i].kernels[device], (enum choice_device)device);
    assert_int_equal(n, 53);
}

/* The reference is the last resort, and never refuses a part. */
TEST(any_takes_every_part) {
    const struct product_device none = {.batch_invariant = true};
    for (size_t i = 0; i < COUNT(choices); i++)
        for (const struct choice_shape *s = choices[i].shapes; s->n_in > 0; s++) {
            struct product p = product_of(s, 3);
            p.n_parts = 1;
            p.gated = false;
            assert_true(product_find("any")->fits(&none, &p));
            p.x = (const char *)p.x + 2;
            assert_string_equal(product_choose(&none, &p)->name, "any");
        }
}

TEST(vectors_need_aligned_weights) {
    const struct product_device device = device_of(H200);
    for (uint32_t n_rows = 1; n_rows <= 512; n_rows *= 2) {
        struct product p =
            product_of(&(struct choice_shape){.n_in = 4096, .n_out = {4096}}, n_rows);
        p.parts[0].w = (const char *)p.parts[0].w + 8;
        assert_string_equal(product_choose(&device, &p)->name, "any");
    }
}

/* The wide kernel takes all of an operation's parts, or none. */
TEST(one_part_of_several_is_not_wide) {
    const struct product_device device = device_of(H200);
    for (uint32_t n_rows = 17; n_rows <= WIDE_MAX_ROWS; n_rows++) {
        struct product p =
            product_of(&(struct choice_shape){.n_in = 4096, .n_out = {1024}}, n_rows);
        assert_string_equal(product_choose(&device, &p)->name, "wide");
        p.is_partial = true;
        assert_string_equal(product_choose(&device, &p)->name, "cublaslt");
    }
}

/* Returns the name of the kernel for a product of rounded inputs. */
static const char *find_rounded(enum choice_device name, const struct choice_shape *shape,
                                uint32_t n_rows, bool blocks) {
    static const _Alignas(64) char memory[64];
    const struct product_device device = device_of(name);
    struct product p = product_of(shape, n_rows);
    p.w_format =
        (struct weight_format){ELEMENT_E4M3, SCALE_F32, blocks ? 128 : 1, blocks ? 128 : 0, false};
    p.x_scales = (const float *)memory;
    p.x_scale_stride = blocks ? n_rows + 3 : 0;
    for (uint32_t i = 0; i < p.n_parts; i++) p.parts[i].scales = memory;
    const struct product_kernel *kernel = product_choose(&device, &p);
    return kernel ? kernel->name : "none";
}

TEST(rounded_inputs_have_kernels_of_their_own) {
    static const struct choice_shape down = {.n_in = 14336, .n_out = {4096}},
                                     gate = {.n_in = 4096, .n_out = {14336}, .gated = true};
    static const struct {
        uint32_t n_rows;
        const char *rows, *rows_gated, *blocks, *blocks_gated;
    } cases[] = {{1, "wide", "wide", "wide", "wide"},     {128, "wide", "wide", "wide", "wide"},
                 {129, "wide", "wide", "fp8", "fp8"},     {256, "wide", "wide", "fp8", "fp8"},
                 {257, "cublaslt", "none", "fp8", "fp8"}, {511, "cublaslt", "none", "fp8", "fp8"},
                 {512, "fp8", "fp8", "fp8", "fp8"},       {8192, "fp8", "fp8", "fp8", "fp8"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const uint32_t n = cases[i].n_rows;
        assert_string_equal(find_rounded(H200, &down, n, false), cases[i].rows);
        assert_string_equal(find_rounded(H200, &gate, n, false), cases[i].rows_gated);
        assert_string_equal(find_rounded(H200, &down, n, true), cases[i].blocks);
        assert_string_equal(find_rounded(H200, &gate, n, true), cases[i].blocks_gated);
        assert_string_equal(find_rounded(H200_INVARIANT, &down, n, false), "none");
    }
}

TEST(joined_parts_become_one) {
    struct product p =
        product_of(&(struct choice_shape){.n_in = 64, .n_out = {8, 16, 24}, .joined = true}, 1);
    assert_true(product_is_joined(&p));
    assert_int_equal(product_join(&p).n_parts, 1);
    assert_int_equal(product_join(&p).parts[0].n_out, 48);
    p.parts[0].joins_next = false;
    assert_false(product_is_joined(&p));
    assert_int_equal(product_join(&p).n_parts, 2);
    assert_int_equal(product_join(&p).parts[0].n_out, 8);
    assert_int_equal(product_join(&p).parts[1].n_out, 40);
}

static const struct weight_format formats[] = {{ELEMENT_E4M3, SCALE_F32, 128, 128, false},
                                               {ELEMENT_I8, SCALE_F16, 1, 32, true},
                                               {ELEMENT_I4, SCALE_BF16, 1, 0, false},
                                               {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false}};

/* Kernels for some formats may come before it.  Packed elements are not for any kernel. */
TEST(unpacked_takes_what_is_not_plain) {
    const struct product_device none = {.batch_invariant = true};
    const struct product_kernel *unpacked = product_find("unpacked");
    for (size_t i = 0; i < COUNT(choices); i++)
        for (const struct choice_shape *s = choices[i].shapes; s->n_in > 0; s++) {
            struct product p = product_of(s, 3);
            assert_false(unpacked->fits(&none, &p));
            p.w_format = (struct weight_format){.element = ELEMENT_Q4_0};
            assert_false(unpacked->fits(&none, &p));
            p.gated = false;
            for (size_t f = 0; f < COUNT(formats); f++) {
                p.w_format = formats[f];
                assert_true(unpacked->fits(&none, &p));
                assert_true(product_choose(&none, &p)->is_invariant);
            }
        }
}

/* Up to 8 rows, in strips, on Hopper; its norm, too. */
TEST(few_rows_of_packed_weights_are_streamed) {
    struct product_device device = device_of(H200);
    const struct choice_shape shape = {
        .n_in = 4096, .n_out = {14336}, .gated = true, .norm = "bf16"};
    struct product p = product_of(&shape, 1);
    p.w_format = (struct weight_format){
        .element = ELEMENT_I4, .scale = SCALE_F16, .block_rows = 1, .block_cols = 128};
    device.packed_streams = true;
    assert_string_equal(product_choose(&device, &p)->name, "unpacked");
    p.in_strips = true;
    for (; p.n_rows <= PACKED_MAX_ROWS; p.n_rows++)
        assert_string_equal(product_choose(&device, &p)->name, "packed stream");
    assert_string_not_equal(product_choose(&device, &p)->name, "packed stream");
    p.n_rows = 1;
    p.parts[1].w = (const char *)p.parts[1].w + 8;
    assert_string_not_equal(product_choose(&device, &p)->name, "packed stream");
    device.packed_streams = false;
    assert_string_not_equal(product_choose(&device, &p)->name, "packed stream");
}

/* One row of few bytes is "packed direct"'s; of more, and of more rows, it is not. */
TEST(one_row_of_few_packed_bytes_is_direct) {
    static const struct weight_format formats[] = {{ELEMENT_I4, SCALE_BF16, 1, 128, false},
                                                   {ELEMENT_E4M3, SCALE_F32, 128, 128, false},
                                                   {ELEMENT_I4, SCALE_F32, 1, 128, false}};
    struct product_device device = device_of(H200);
    const struct choice_shape small = {.n_in = 2048, .n_out = {4096, 512, 512}, .norm = "bf16"},
                              large = {.n_in = 4096, .n_out = {8192}};
    device.packed_streams = true;
    for (int i = 0; i < 3; i++) {
        struct product p = product_of(&small, 1), more = product_of(&large, 1);
        p.w_format = more.w_format = formats[i];
        p.in_strips = more.in_strips = true;
        assert_string_equal(product_choose(&device, &p)->name,
                            i < 2 ? "packed direct" : "packed stream");
        assert_string_equal(product_choose(&device, &more)->name, "packed stream");
        p.n_rows = 2;
        assert_string_equal(product_choose(&device, &p)->name, "packed stream");
        p.n_rows = 1;
        device.batch_invariant = true;
        assert_string_equal(product_choose(&device, &p)->name, "unpacked");
        device.batch_invariant = false;
    }
}

/* Weights in strips are for "packed wide" if it has kernels for the format, and if it can write the
 * results.  A backend whose sums have one order does not take it. */
TEST(packed_wide_takes_formats_in_strips) {
    static const struct choice_shape shape = {.n_in = 4096, .n_out = {4096, 1024, 1024}};
    struct product_device device = device_of(H200);
    struct product p = product_of(&shape, 20);
    p.in_strips = true;
    p.w_format = (struct weight_format){ELEMENT_I4, SCALE_F16, 1, 128, false};
    assert_string_equal(product_choose(&device, &p)->name, "unpacked");
    device.packed_wide.n_clusters[1] = 132;
    for (p.n_rows = 1; p.n_rows < 10000; p.n_rows *= 3)
        assert_string_equal(product_choose(&device, &p)->name, "packed wide");
    p.in_strips = false;
    assert_string_equal(product_choose(&device, &p)->name, "unpacked");
    p.in_strips = true;
    p.parts[1].y_stride++;
    assert_string_equal(product_choose(&device, &p)->name, "unpacked");
    p.y_f32 = true;
    assert_string_equal(product_choose(&device, &p)->name, "packed wide");
    device.batch_invariant = true;
    assert_string_equal(product_choose(&device, &p)->name, "unpacked");
    device.batch_invariant = false;
    p.w_format.block_cols = 48;
    assert_string_equal(product_choose(&device, &p)->name, "unpacked");
}

/* Gate and up are unpacked together where a kernel computes their slabs so. */
TEST(gate_and_up_are_unpacked_as_their_slabs_are_computed) {
    const struct choice_shape shape = {.n_in = 4096, .n_out = {14336}, .gated = true};
    for (int name = 0; name < N_CHOICE_DEVICES; name++) {
        const struct product_device device = device_of((enum choice_device)name);
        for (uint32_t n_rows = 1; n_rows <= 4096; n_rows *= 2) {
            struct product plain = product_of(&shape, n_rows), p = plain;
            p.w_format = formats[0];
            plain.parts[0].n_out = plain.parts[1].n_out = slab_rows(&p);
            assert_true(product_find("unpacked")->fits(&device, &p) ==
                        (product_choose(&device, &plain) != NULL));
        }
    }
}

/* Checks that slabs have each row once, in order, and that each lies in the memory. */
static void check_slabs(const struct choice_shape *shape) {
    static char memory[64];
    struct product p = product_of(shape, 1);
    uint32_t next[LINEAR_MAX_PARTS] = {0};
    p.w_format = formats[0];
    const uint32_t n_in_slab = slab_rows(&p), n = slab_all_rows(&p);
    for (uint32_t first = 0; first < n; first += n_in_slab) {
        struct slab slab;
        uint64_t bytes = 0;
        slab_cut(&p, memory, first, &slab);
        for (uint32_t i = 0; i < slab.p.n_parts; i++) {
            const struct product_part *rows = &slab.p.parts[i], *part = &p.parts[slab.part[i]];
            assert_int_equal(slab.first[i], next[slab.part[i]]);
            assert_ptr_equal(rows->w, memory + bytes);
            assert_ptr_equal(rows->y, (char *)part->y + slab.first[i] * sizeof(uint16_t));
            next[slab.part[i]] += rows->n_out;
            bytes += (uint64_t)rows->n_out * p.n_in * sizeof(uint16_t);
        }
        assert_true(bytes <= SLAB_BYTES);
    }
    for (uint32_t i = 0; i < p.n_parts; i++) assert_int_equal(next[i], p.parts[i].n_out);
}

TEST(slabs_have_each_row_once) {
    static const struct choice_shape shapes[] = {{.n_in = 4096, .n_out = {14336}, .gated = true},
                                                 {.n_in = 32768, .n_out = {2200}, .gated = true},
                                                 {.n_in = 16384, .n_out = {3000, 1000, 1000}},
                                                 {.n_in = 1 << 20, .n_out = {7, 300, 5}},
                                                 {.n_in = 33, .n_out = {1}},
                                                 {.n_in = 8192, .n_out = {128256}}};
    for (size_t i = 0; i < COUNT(shapes); i++) check_slabs(&shapes[i]);
}
