/* test_offloaded_layers.c - which layers' experts lie in the machine's memory, and that these alone
 * are loaded there. */
#include "engine/model/offloaded_layers.h"

#include "engine/base/error.h"
#include "engine/cpu/cpu.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/offloaded.h"
#include "engine/model/expert_offload.h"
#include "engine/model/model.h"
#include "tests/test.h"

enum { N = 8 };
static const uint64_t equal[N] = {10, 10, 10, 10, 10, 10, 10, 10},
                      dense_first[N] = {0, 10, 10, 10, 10, 10, 10, 10};

static struct offloaded_layers choose(const uint64_t *bytes, uint64_t least, bool *is_offloaded) {
    const struct offloaded_layers chosen = offloaded_layers_choose(bytes, N, least, is_offloaded);
    uint64_t sum = 0;
    uint32_t n = 0;
    for (int i = 0; i < N; i++) {
        assert_false(is_offloaded[i] && bytes[i] == 0);
        n += is_offloaded[i];
        sum += is_offloaded[i] ? bytes[i] : 0;
    }
    assert_int_equal(chosen.n_layers, n);
    assert_int_equal(chosen.bytes, sum);
    return chosen;
}

TEST(whole_layers_are_chosen_until_the_size_is_met) {
    bool is_offloaded[N];
    for (uint64_t least = 0; least <= 90; least++) {
        const struct offloaded_layers chosen = choose(equal, least, is_offloaded);
        const uint64_t n = (least + 9) / 10;
        assert_int_equal(chosen.n_layers, n < N ? n : N);
        assert_true(n == 0 || is_offloaded[N - 1]);
    }
    assert_int_equal(choose(dense_first, UINT64_MAX - 1, is_offloaded).n_layers, N - 1);
}

TEST(chosen_layers_are_spread_evenly) {
    static const bool half[N] = {0, 1, 0, 1, 0, 1, 0, 1};
    bool is_offloaded[N];
    choose(equal, 40, is_offloaded);
    assert_memory_equal(is_offloaded, half, sizeof(half));
    choose(equal, 20, is_offloaded);
    assert_true(is_offloaded[3] && is_offloaded[7]);
}

TEST(a_model_without_experts_has_nothing_to_choose) {
    static const uint64_t none[N] = {0};
    bool is_offloaded[N];
    assert_int_equal(choose(none, 100, is_offloaded).n_layers, 0);
}

/* ---- loading ---- */

static uint32_t n_offloaded;

/* A device that has memory of its own, but for which that is the machine's. */
static struct device_memory own_memory(struct backend *be) {
    (void)be;
    return (struct device_memory){1u << 30, 1u << 30};
}

static int count_alloc(struct backend *be, size_t bytes, void **out, struct error *err) {
    n_offloaded++;
    return be->ops->alloc(be, bytes, out, err);
}

/* Checks that each offloaded layer has its weights, and the next one but for the last layer. */
static void check_links(const struct model *model) {
    const struct offloaded_layer *before = NULL;
    assert_int_equal(expert_offload_fetched(model), 0);
    for (uint32_t i = 0; i < model->config.n_layers; i++) {
        if (!model->is_offloaded[i]) continue;
        const struct offloaded_layer *layer =
            (const void *)((const char *)model->layers[i].gate.data - OFFLOADED_BYTES);
        assert_true(layer->mark == OFFLOADED_MARK);
        assert_ptr_equal(layer->up.data, model->layers[i].up.data);
        if (before) assert_ptr_equal(before->next, i + 1 < model->config.n_layers ? layer : NULL);
        before = layer;
    }
    if (before) assert_null(before->next);
}

/* Loads a model whose layers all have experts.  Returns how many matrices were offloaded. */
static uint32_t load(struct backend *be, uint64_t bytes, struct offloaded_layers *chosen) {
    const struct model_source source = {.offload_bytes = bytes};
    struct model *model = NULL;
    struct error err = {0};
    n_offloaded = 0;
    if (model_load(&model, DATA_DIR "/gemma4-gqa-bf16-head32-experts", &source, be, &err))
        fail_msg("%s", err.text);
    *chosen = model->offload;
    check_links(model);
    model_destroy(model, be);
    return n_offloaded;
}

TEST(only_experts_of_chosen_layers_are_offloaded) {
    struct backend *be = NULL;
    struct error err = {0};
    struct offloaded_layers all, one;
    assert_int_equal(cpu_backend_create(&be, &(struct cpu_config){0}, &err), 0);
    const struct backend_ops *own = be->ops;
    struct backend_ops ops = *own;
    const struct host_pool_ops pool = {.alloc = count_alloc, .free = own->free};
    ops.host_pool = &pool;
    ops.memory = own_memory;
    assert_false(expert_offload_is_possible(be));
    be->ops = &ops;
    assert_true(expert_offload_is_possible(be));
    assert_int_equal(load(be, 0, &one), 0);
    const uint32_t n_matrices = load(be, UINT64_MAX - 1, &all);
    assert_true(all.n_layers > 1);
    assert_int_equal(n_matrices, 3 * all.n_layers);
    assert_int_equal(load(be, 1, &one), 3);
    assert_int_equal(one.bytes * all.n_layers, all.bytes);
    assert_int_equal(load(be, one.bytes + 1, &one), 6);
    be->ops = own;
    be->ops->destroy(be);
}
