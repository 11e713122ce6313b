/* test_packed.c - packed elements against what gguf-py computes from the same bytes, bit by bit.
 * The table is made by scripts/fixtures/golden_packed.py. */
#include <string.h>

#include "engine/device/packed.h"
#include "engine/device/weight.h"
#include "tests/test.h"

enum { N_BLOCKS = 1000, MOST_BYTES = 256, MOST_ELEMENTS = 256 };

static const struct golden {
    enum element element;
    uint8_t highs[2];  /* of f16 numbers in a block: their high bytes; 0: there is no such */
    uint32_t first[4]; /* bits of values */
    uint64_t hash;     /* of those of all blocks */
} goldens[] = {
    {ELEMENT_Q4_0,
     {1},
     {0x38e88000, 0x39688000, 0xb8e88000, 0x399b0000},
     UINT64_C(0xe1143a83f914cb25)},
    {ELEMENT_Q4_1,
     {1, 3},
     {0x3c4df700, 0x3c54a000, 0x3c4cc100, 0x3c54a000},
     UINT64_C(0xb5be7f20e985c6c5)},
    {ELEMENT_Q5_0,
     {1},
     {0xb9fbe000, 0x3a1b0000, 0xb9688000, 0x3a07a000},
     UINT64_C(0xb57328f0696f1325)},
    {ELEMENT_Q5_1,
     {1, 3},
     {0x3c474e00, 0x3c49ba00, 0x3c4c2600, 0x3c457d00},
     UINT64_C(0xfacef0446d61dc43)},
    {ELEMENT_Q8_0,
     {1},
     {0x3b5c6400, 0xbb6d5800, 0x3b005c00, 0x3b9b0000},
     UINT64_C(0x492325efd55db865)},
    {ELEMENT_IQ4_NL,
     {1},
     {0x3aa98800, 0x3b490400, 0xbab81000, 0x3b99ca00},
     UINT64_C(0x518825bfb53dd1a5)},
    {ELEMENT_MXFP4,
     {0},
     {0x36000000, 0x36c00000, 0x36000000, 0xb6400000},
     UINT64_C(0x794ebd706f0f6725)},
    {ELEMENT_Q2_K,
     {81, 83},
     {0xbbb28000, 0x3d706000, 0x3db9dc00, 0xbbb28000},
     UINT64_C(0xa99d77dacacfcdb3)},
    {ELEMENT_Q3_K,
     {109},
     {0x3bf00600, 0x3c700600, 0xbbf00600, 0x3b700600},
     UINT64_C(0xdbe1955635546ce5)},
    {ELEMENT_Q4_K,
     {1, 3},
     {0xbe94ad60, 0xbe929890, 0xbe954d38, 0xbe930320},
     UINT64_C(0x33d08746689847fc)},
    {ELEMENT_Q5_K,
     {1, 3},
     {0xbe92cdd8, 0xbe9517f0, 0xbe968ce8, 0xbe940d88},
     UINT64_C(0x51f0e23021adb898)},
    {ELEMENT_Q6_K,
     {209},
     {0xbf0b07e0, 0x3efa4160, 0x3e0b07e0, 0x3d5e7300},
     UINT64_C(0xa5d0dbe6017ceb2b)},
    {ELEMENT_IQ4_XS,
     {1},
     {0xbb853400, 0xbc7b4500, 0x3c86b780, 0x3b1d6c00},
     UINT64_C(0xf2c4b9a5166ddc33)},
};

enum { N_GOLDENS = sizeof(goldens) / sizeof(*goldens) };

static uint8_t random_byte(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint8_t)(*state >> 56);
}

static void fill(const struct golden *g, uint8_t *block, size_t n, uint64_t *state) {
    for (size_t i = 0; i < n; i++) block[i] = random_byte(state);
    for (int i = 0; i < 2; i++)
        if (g->highs[i]) block[g->highs[i]] &= 0xbf;
}

/* Returns FNV-1a of words of 32 bits. */
static uint64_t absorb(uint64_t hash, const uint32_t *words, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ words[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void check(const struct golden *g) {
    const uint32_t n = packed_block(g->element);
    uint64_t state = 1, hash = UINT64_C(0xcbf29ce484222325);
    uint8_t block[MOST_BYTES];
    float values[MOST_ELEMENTS];
    uint32_t words[MOST_ELEMENTS];
    for (int i = 0; i < N_BLOCKS; i++) {
        const struct weight w = weight_plain(block, g->element, 1, n);
        fill(g, block, weight_bytes(&w), &state);
        weight_to_float(&w, 0, values);
        memcpy(words, values, sizeof(words));
        if (i == 0) assert_memory_equal(words, g->first, sizeof(g->first));
        hash = absorb(hash, words, n);
    }
    assert_true(hash == g->hash);
}

TEST(values_are_those_of_gguf_py) {
    for (int i = 0; i < N_GOLDENS; i++) check(&goldens[i]);
}

/* A row is whole blocks, and rows follow one another. */
TEST(rows_are_views) {
    for (int i = 0; i < N_GOLDENS; i++) {
        const uint32_t n = 2 * packed_block(goldens[i].element);
        uint8_t data[3 * 2 * MOST_BYTES];
        float row[2 * MOST_ELEMENTS], again[2 * MOST_ELEMENTS];
        uint64_t random = 7;
        const struct weight w = weight_plain(data, goldens[i].element, 3, n);
        const size_t bytes = weight_row_bytes(&w) / 2;
        struct weight view;
        for (int block = 0; block < 6; block++)
            fill(&goldens[i], data + block * bytes, bytes, &random);
        assert_int_equal(weight_bytes(&w), 6 * bytes);
        assert_true(weight_rows(&w, 2, 1, &view));
        weight_to_float(&w, 2, row);
        weight_to_float(&view, 0, again);
        assert_memory_equal(row, again, n * sizeof(float));
        assert_false(weight_is_plain(&w.format));
    }
}

TEST(formats_have_names) {
    const struct weight_format format = {.element = ELEMENT_Q4_K};
    char text[WEIGHT_FORMAT_TEXT];
    weight_format_text(&format, text);
    assert_string_equal(text, "Q4_K");
}
