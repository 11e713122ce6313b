/* test_suffix_index.c - the index against a search that looks at every position. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/speculate/suffix_index.h"
#include "tests/test.h"

static uint32_t length_at(const uint32_t *tokens, uint32_t n, uint32_t end) {
    uint32_t length = 0;
    while (length < end && length < SUFFIX_MAX &&
           tokens[end - 1 - length] == tokens[n - 1 - length])
        length++;
    return length;
}

/* The longest match, of equally long ones the hint's, then the newest. */
static struct suffix_match look_everywhere(const uint32_t *tokens, uint32_t n, uint32_t hint) {
    struct suffix_match best = {0};
    for (uint32_t end = n - 1; n > 0 && end > 0; end--) {
        const uint32_t length = length_at(tokens, n, end);
        if (length >= SUFFIX_MIN && length > best.length) best = (struct suffix_match){end, length};
    }
    if (hint > 0 && best.length > 0 && length_at(tokens, n, hint) == best.length) best.end = hint;
    return best;
}

static void assert_same(struct suffix_match a, struct suffix_match b) {
    assert_int_equal(a.length, b.length);
    if (a.length > 0) assert_int_equal(a.end, b.end);
}

/* Texts of at most SUFFIX_MAX_VISITED occurrences of anything: none is left out. */
TEST(it_finds_what_a_search_of_all_positions_finds) {
    enum { N = 300 };
    uint32_t tokens[N];
    uint64_t n_found = 0;
    for (unsigned seed = 1; seed <= 60; seed++) {
        struct suffix_index index;
        const uint32_t n_kinds = 5 + seed % 40;
        srand(seed);
        assert_int_equal(suffix_index_init(&index, N), 0);
        for (uint32_t n = 0; n < N;) {
            const uint32_t from = n > 20 && rand() % 3 == 0 ? (uint32_t)rand() % (n - 10) : N;
            for (uint32_t k = 1 + (uint32_t)rand() % 30; k > 0 && n < N; k--, n++)
                tokens[n] = from < N && from + k < n ? tokens[n - from % n - 1]
                                                     : (uint32_t)rand() % n_kinds;
            suffix_index_extend(&index, tokens, n, UINT32_MAX);
            const uint32_t hint = rand() % 2 && n > 1 ? 1 + (uint32_t)rand() % (n - 1) : 0;
            const struct suffix_match found = suffix_index_find(&index, tokens, n, hint);
            assert_same(found, look_everywhere(tokens, n, hint));
            n_found += found.length > 0;
        }
        suffix_index_fini(&index);
    }
    assert_true(n_found > 300);
}

TEST(it_reads_a_text_in_pieces) {
    enum { N = 1000 };
    uint32_t tokens[N];
    struct suffix_index whole, pieces;
    assert_int_equal(suffix_index_init(&whole, N), 0);
    assert_int_equal(suffix_index_init(&pieces, N), 0);
    for (uint32_t i = 0; i < N; i++) tokens[i] = i * i % 97;
    suffix_index_extend(&whole, tokens, N, UINT32_MAX);
    for (int i = 0; i < N; i++) suffix_index_extend(&pieces, tokens, N, 7);
    assert_int_equal(pieces.n_indexed, N - 1);
    assert_same(suffix_index_find(&pieces, tokens, N, 0), suffix_index_find(&whole, tokens, N, 0));
    assert_int_equal(suffix_index_find(&whole, tokens, N, 0).end, N - 97);
    suffix_index_fini(&whole);
    suffix_index_fini(&pieces);
}

TEST(of_a_longer_text_it_keeps_the_newest) {
    enum { N = 3 * SUFFIX_MAX_POSITIONS / 2 };
    uint32_t *tokens = calloc(N, sizeof(*tokens));
    struct suffix_index index;
    assert_int_equal(suffix_index_init(&index, N), 0);
    assert_int_equal(suffix_index_bytes(N), 8 * (size_t)SUFFIX_MAX_POSITIONS);
    for (uint32_t i = 0; i < N; i++) tokens[i] = i;
    for (uint32_t n = 0; n < N; n += 1 << 16) suffix_index_extend(&index, tokens, n, UINT32_MAX);
    suffix_index_extend(&index, tokens, N, UINT32_MAX);
    /* The text's end as it was long ago is out of reach, and as it was later is not. */
    for (uint32_t i = 0; i < 3; i++) tokens[N - 3 + i] = 1000 + i;
    assert_int_equal(suffix_index_find(&index, tokens, N, 0).length, 0);
    for (uint32_t i = 0; i < 3; i++) tokens[N - 3 + i] = N - 5000 + i;
    assert_int_equal(suffix_index_find(&index, tokens, N, 0).end, N - 5000 + 3);
    suffix_index_fini(&index);
    free(tokens);
}

/* A long run of one token is the worst case of a chain; the time is bounded by its constants. */
TEST(short_and_uniform_texts_have_matches_or_none) {
    enum { N = 5000 };
    static uint32_t tokens[N];
    struct suffix_index index;
    assert_int_equal(suffix_index_init(&index, N), 0);
    for (uint32_t n = 0; n <= SUFFIX_MIN; n++) {
        suffix_index_extend(&index, tokens, n, UINT32_MAX);
        assert_int_equal(suffix_index_find(&index, tokens, n, 0).length, 0);
    }
    for (uint32_t n = SUFFIX_MIN + 1; n <= N; n++) {
        suffix_index_extend(&index, tokens, n, UINT32_MAX);
        const struct suffix_match match = suffix_index_find(&index, tokens, n, 0);
        assert_int_equal(match.length, n - 1 < SUFFIX_MAX ? n - 1 : SUFFIX_MAX);
    }
    suffix_index_fini(&index);
}
