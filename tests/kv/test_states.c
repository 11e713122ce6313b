/* test_states.c - the cache of states by itself: names, ages, bounds, and what it gives back.
 *
 * What a state holds, and that a sequence goes on from it, is tested with a whole engine
 * (tests/engine/test_states.c). */
#include <stdlib.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/reclaim.h"
#include "engine/kv/state_cache.h"
#include "tests/test.h"

enum { N_LAYERS = 3, N_PAGES = 60 };

struct rig {
    struct kv_space space;
    uint32_t tokens[300];
};

static void begin(struct rig *rig, uint32_t n_pages) {
    *rig = (struct rig){.space.n_layers = N_LAYERS};
    assert_int_equal(page_pool_create(&rig->space.pool, n_pages, NULL), 0);
    assert_int_equal(prefix_cache_create(&rig->space.cache, &rig->space, NULL), 0);
    assert_int_equal(state_cache_create(&rig->space.states, &rig->space, NULL), 0);
    for (uint32_t i = 0; i < 300; i++) rig->tokens[i] = 1000 + i;
}

static void end(struct rig *rig) {
    const uint32_t n_pages = page_pool_n_pages(rig->space.pool);
    assert_int_equal(kv_n_available(&rig->space), n_pages);
    assert_int_equal(kv_make_free(&rig->space, n_pages), 0);
    assert_int_equal(page_pool_n_free(rig->space.pool), n_pages);
    assert_int_equal(kv_n_idle(&rig->space), 0);
    state_cache_destroy(rig->space.states);
    prefix_cache_destroy(rig->space.cache);
    page_pool_destroy(rig->space.pool);
}

static struct kv_state_key key_of(uint64_t salt) {
    return (struct kv_state_key){
        .salt = salt, .budget = {.capacity = 8, .n_recent = 8}, .chunk = 64};
}

/* A state of the first n_tokens tokens, with n_pages pages a layer. */
static struct kv_state *make(struct rig *rig, struct kv_state_key key, uint32_t n_tokens,
                             uint32_t n_pages) {
    struct kv_state *state =
        kv_state_create(&rig->space, &key, rig->tokens, n_tokens, n_pages, true);
    assert_non_null(state);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        page_pool_take_sure(rig->space.pool, state->layers[l].pages, n_pages);
        state->layers[l].n = n_pages;
    }
    state->n_pages = n_pages * N_LAYERS;
    state->turn = n_tokens;
    state->is_valid = true;
    return state;
}

static struct kv_state *add(struct rig *rig, struct kv_state_key key, uint32_t n_tokens,
                            uint32_t n_pages) {
    struct kv_state *state = make(rig, key, n_tokens, n_pages);
    state_cache_insert(rig->space.states, state);
    return state;
}

static bool always(const void *ctx, const struct kv_state *state) {
    (void)ctx, (void)state;
    return true;
}

static bool is_not(const void *ctx, const struct kv_state *state) {
    return ctx != state;
}

static struct kv_state *find(const struct rig *rig, struct kv_state_key key, uint32_t n_max) {
    return state_cache_find(rig->space.states, &key, rig->tokens, n_max, always, NULL);
}

TEST(the_longest_state_of_a_name_is_found) {
    struct rig rig;
    begin(&rig, N_PAGES);
    struct kv_state *a = add(&rig, key_of(1), 100, 1), *b = add(&rig, key_of(1), 200, 1),
                    *c = add(&rig, key_of(2), 250, 1);
    assert_null(find(&rig, key_of(1), 99));
    assert_ptr_equal(find(&rig, key_of(1), 100), a);
    assert_ptr_equal(find(&rig, key_of(1), 199), a);
    assert_ptr_equal(find(&rig, key_of(1), 300), b);
    assert_ptr_equal(find(&rig, key_of(2), 300), c);
    assert_null(find(&rig, key_of(3), 300));
    const struct kv_state_key key = key_of(1);
    assert_ptr_equal(state_cache_find(rig.space.states, &key, rig.tokens, 300, is_not, b),
                     a); /* b suits not */
    rig.tokens[150]++;
    assert_ptr_equal(find(&rig, key_of(1), 300), a);
    rig.tokens[99]++;
    assert_null(find(&rig, key_of(1), 300));
    end(&rig);
}

/* Whatever decides what is kept is in the key; padding is not. */
TEST(every_parameter_is_part_of_the_name) {
    struct rig rig;
    begin(&rig, N_PAGES);
    struct kv_state_key other[12];
    for (int i = 0; i < 12; i++) {
        memset(&other[i], i, sizeof(other[i]));
        other[i] = key_of(1);
    }
    add(&rig, other[11], 100, 1);
    other[0].salt++;
    other[1].chunk = 0;
    other[2].budget.capacity++;
    other[3].budget.n_sink++;
    other[4].budget.n_recent--;
    other[5].budget.score = KV_SCORE_SUM;
    other[6].budget.decay = 0.5f;
    other[7].budget.window = 64;
    other[8].budget.pooling = KV_POOLING_MAX;
    other[9].budget.kernel = 7;
    other[10].budget.cache_positions = true;
    for (int i = 0; i < 11; i++) {
        assert_null(find(&rig, other[i], 300));
        assert_true(state_cache_hash(rig.space.states, &other[i], rig.tokens, 100) !=
                    state_cache_hash(rig.space.states, &other[11], rig.tokens, 100));
    }
    assert_non_null(find(&rig, other[11], 300));
    end(&rig);
}

TEST(a_state_that_may_be_unsound_is_not_found) {
    struct rig rig;
    begin(&rig, N_PAGES);
    struct kv_state *a = make(&rig, key_of(1), 100, 2), *owned = a;
    a->is_valid = false;
    a->owner = &owned;
    state_cache_insert(rig.space.states, a);
    assert_null(find(&rig, key_of(1), 300));
    a->is_valid = true;
    assert_ptr_equal(find(&rig, key_of(1), 300), a);
    assert_int_equal(kv_make_free(&rig.space, N_PAGES), 0); /* it can be freed in any case, */
    assert_null(owned);                                     /* and its owner is told */
    end(&rig);
}

TEST(of_one_name_there_is_one_state) {
    struct rig rig;
    begin(&rig, N_PAGES);
    struct kv_state *a = add(&rig, key_of(1), 100, 2);
    add(&rig, key_of(2), 100, 2);
    add(&rig, key_of(1), 100, 2); /* gives its pages back; and a is used again */
    assert_int_equal(kv_n_idle(&rig.space), 2 * 2 * N_LAYERS);
    assert_ptr_equal(find(&rig, key_of(1), 300), a);
    assert_int_equal(kv_make_free(&rig.space, N_PAGES - 2 * N_LAYERS), 0);
    assert_ptr_equal(find(&rig, key_of(1), 300), a);
    assert_null(find(&rig, key_of(2), 300));
    end(&rig);
}

/* A block of the prefix cache that is not used any more. */
static void add_block(struct rig *rig, uint32_t seed) {
    uint32_t tokens[PAGE_TOKENS] = {seed}, pages[N_LAYERS];
    struct page_list lists[N_LAYERS];
    const uint64_t hash = prefix_cache_hash(rig->space.cache, 0, tokens);
    page_pool_take_sure(rig->space.pool, pages, N_LAYERS);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        lists[l] = (struct page_list){.pages = &pages[l], .n = 1, .capacity = 1};
    const uint32_t block = prefix_cache_insert(rig->space.cache, PREFIX_NONE, 0, hash, tokens,
                                               lists, 0, 0, KV_NO_PAGE);
    prefix_cache_unuse(rig->space.cache, block, 0);
    page_pool_release(rig->space.pool, pages, N_LAYERS);
}

TEST(states_and_blocks_leave_in_one_order_of_age) {
    struct rig rig;
    begin(&rig, 6 * N_LAYERS);
    add(&rig, key_of(1), 100, 1);
    add_block(&rig, 1);
    struct kv_state *b = add(&rig, key_of(2), 100, 2);
    add_block(&rig, 2);
    add(&rig, key_of(3), 100, 1);
    assert_int_equal(page_pool_n_free(rig.space.pool), 0);
    assert_int_equal(kv_n_idle(&rig.space), 6 * N_LAYERS);
    assert_int_equal(kv_make_free(&rig.space, 1), 0);
    assert_null(find(&rig, key_of(1), 300));
    assert_int_equal(prefix_cache_n_blocks(rig.space.cache), 2);
    state_cache_take(rig.space.states, b); /* used: it is the newest now */
    assert_int_equal(kv_n_idle(&rig.space), 3 * N_LAYERS);
    state_cache_insert(rig.space.states, b);
    assert_int_equal(kv_make_free(&rig.space, 3 * N_LAYERS), 0);
    assert_int_equal(prefix_cache_n_blocks(rig.space.cache), 0);
    assert_ptr_equal(find(&rig, key_of(2), 300), b);
    assert_int_equal(kv_make_free(&rig.space, 3 * N_LAYERS + 1), 0);
    assert_null(find(&rig, key_of(3), 300));
    assert_ptr_equal(find(&rig, key_of(2), 300), b);
    end(&rig);
}

TEST(their_number_is_bounded) {
    struct rig rig;
    begin(&rig, 2 * STATE_MAX_STATES * N_LAYERS);
    for (uint32_t i = 0; i < STATE_MAX_STATES + 3; i++) add(&rig, key_of(i), 1, 1);
    assert_int_equal(kv_n_idle(&rig.space), STATE_MAX_STATES * N_LAYERS);
    assert_null(find(&rig, key_of(2), 300));
    assert_non_null(find(&rig, key_of(3), 300));
    end(&rig);
}

/* Ten million tokens each: two do not fit beside one another, and one of twenty does not at all. */
TEST(the_length_of_their_names_is_bounded) {
    struct rig rig;
    begin(&rig, N_PAGES);
    const uint32_t n = 10000000;
    uint32_t *tokens = calloc(2 * n, sizeof(*tokens));
    for (uint64_t salt = 0; salt < 3; salt++) {
        const struct kv_state_key key = key_of(salt);
        struct kv_state *one = kv_state_create(&rig.space, &key, tokens, salt < 2 ? n : 2 * n, 1,
                                               true),
                        *owned = one;
        one->is_valid = true;
        one->owner = &owned;
        state_cache_insert(rig.space.states, one);
        assert_true((owned == NULL) == (salt == 2));
        if (owned) one->owner = NULL;
    }
    for (uint64_t salt = 0; salt < 3; salt++) {
        const struct kv_state_key key = key_of(salt);
        const struct kv_state *found =
            state_cache_find(rig.space.states, &key, tokens, 2 * n, always, NULL);
        assert_true((found != NULL) == (salt == 1));
    }
    free(tokens);
    end(&rig);
}
