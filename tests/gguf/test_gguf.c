/* test_gguf.c - the parser of GGUF files: what it reads, what it refuses, and mutations. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "tests/gguf/visit.h"
#include "tests/gguf/writer.h"
#include "tests/test.h"

enum { N_MUTATIONS = 20000, F32 = 0, Q4_K = 12, IQ1_S = 19 };

static struct writer w; /* large, so not on the stack */

static int parse(struct gguf **out, struct error *err) {
    return gguf_parse(out, w.bytes, w.n, "m.gguf", err);
}

static void refuse(int code, const char *words) {
    struct gguf *file = NULL;
    struct error err = {0};
    assert_int_equal(parse(&file, &err), code);
    assert_null(file);
    if (!strstr(err.text, words)) fail_msg("'%s' has not '%s'", err.text, words);
}

/* Writes a file with a key of each type and three tensors. */
static void write_all(uint32_t version) {
    write_start(&w, version, 3, 14);
    for (enum gguf_type type = GGUF_U8; type < GGUF_N_TYPES; type++) {
        static const uint8_t sizes[GGUF_N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
        char name[2] = {(char)('a' + type), 0};
        if (!sizes[type]) continue;
        write_key(&w, name, type);
        write_number(&w, type == GGUF_I16 ? 0xfffe : 1, sizes[type]);
    }
    write_string_key(&w, "text", "some");
    write_array_key(&w, "words", GGUF_STRING, 3);
    write_text(&w, "one"), write_text(&w, ""), write_text(&w, "three");
    write_array_key(&w, "nested", GGUF_ARRAY, 1);
    write_number(&w, GGUF_U16, 4), write_number(&w, 2, 8), write_number(&w, 0x00020001, 4);
    write_tensor(&w, "z", F32, 0, 3, 0);
    write_tensor(&w, "b", Q4_K, 2, 256, 32);
    write_tensor(&w, "a", F32, 2, 3, 320);
    write_padding(&w, 32);
    write_zeros(&w, 320 + 24);
}

TEST(keys_and_tensors_are_read) {
    for (uint32_t version = 2; version <= 3; version++) {
        struct gguf *file = NULL;
        struct error err = {0};
        uint64_t whole = 0;
        double number = 0;
        size_t n = 0;
        write_all(version);
        assert_int_equal(parse(&file, &err), 0);
        assert_true(gguf_whole(gguf_find(file, "a"), &whole) && whole == 1);
        assert_false(gguf_whole(gguf_find(file, "d"), &whole)); /* -2 */
        assert_true(gguf_number(gguf_find(file, "d"), &number) && number == -2);
        assert_true(gguf_truth(gguf_find(file, "h"), false));
        assert_null(gguf_find(file, "none"));
        struct gguf_strings strings = {.array = gguf_find(file, "words")};
        assert_memory_equal(gguf_next_string(file, &strings, &n), "one", 3);
        assert_non_null(gguf_next_string(file, &strings, &n));
        assert_int_equal(n, 0);
        assert_memory_equal(gguf_next_string(file, &strings, &n), "three", 5);
        assert_null(gguf_next_string(file, &strings, &n));
        const struct gguf_tensor *t = gguf_find_tensor(file, "b");
        assert_int_equal(t->element, ELEMENT_Q4_K);
        assert_int_equal(t->dims[0], 2);
        assert_int_equal(t->dims[1], 256);
        assert_int_equal(t->n_bytes, 288);
        assert_int_equal(gguf_n_tensors(file), 3);
        assert_null(gguf_find_tensor(file, "c"));
        gguf_destroy(file);
    }
}

TEST(versions_and_byte_orders_are_named) {
    write_start(&w, 1, 0, 0);
    refuse(ERR_UNSUPPORTED, "version 1 of GGUF is not supported");
    write_start(&w, 4, 0, 0);
    refuse(ERR_UNSUPPORTED, "version 4 of GGUF");
    write_start(&w, 0x03000000, 0, 0);
    refuse(ERR_UNSUPPORTED, "big-endian");
    w.bytes[0] = 'X';
    refuse(ERR_INVALID, "no GGUF file");
}

TEST(other_types_are_named) {
    write_start(&w, 3, 1, 0);
    write_tensor(&w, "t", IQ1_S, 1, 256, 0);
    refuse(ERR_UNSUPPORTED, "tensor 't': its type, IQ1_S, is not supported; these are: F32, F16, ");
    write_start(&w, 3, 1, 0);
    write_tensor(&w, "t", 77, 1, 256, 0);
    refuse(ERR_UNSUPPORTED, "its type, number 77,");
}

/* Each file is wrong in one respect. */
TEST(wrong_files_are_refused) {
    write_start(&w, 3, UINT64_MAX, 0);
    refuse(ERR_INVALID, "more tensors than it can have");
    write_start(&w, 3, 0, UINT64_MAX);
    refuse(ERR_INVALID, "more keys than it can have");
    write_start(&w, 3, 0, 1);
    write_string_key(&w, "k", "text");
    w.n -= 1;
    refuse(ERR_INVALID, "ends inside its header");
    write_start(&w, 3, 0, 1);
    write_array_key(&w, "k", GGUF_U64, UINT64_MAX / 8 + 1);
    refuse(ERR_INVALID, "ends inside its header");
    write_start(&w, 3, 0, 2);
    write_whole_key(&w, "k", 1), write_whole_key(&w, "k", 2);
    refuse(ERR_INVALID, "the key 'k' is there twice");
    write_start(&w, 3, 0, 1);
    write_whole_key(&w, "general.alignment", 24);
    refuse(ERR_INVALID, "'general.alignment' is not a power of two");
    write_start(&w, 3, 0, 1);
    write_array_key(&w, "k", GGUF_ARRAY, 1);
    for (int i = 0; i < 9; i++) write_number(&w, GGUF_ARRAY, 4), write_number(&w, 1, 8);
    refuse(ERR_INVALID, "nested too deeply");
}

TEST(wrong_tensors_are_refused) {
    static const struct {
        uint32_t type;
        uint64_t rows, cols, offset;
        const char *words;
    } wrong[] = {{F32, 2, 0, 0, "has a dimension that is not"},
                 {F32, 2, UINT64_C(1) << 31, 0, "has a dimension that is not"},
                 {Q4_K, 2, 255, 0, "rows that are not whole blocks"},
                 {F32, INT32_MAX, INT32_MAX, 0, "ends beyond the file"},
                 {F32, 2, 2, 31, "is not aligned"},
                 {F32, 2, 2, UINT64_MAX - 31, "ends beyond the file"},
                 {F32, 2, 2, 0, "shares bytes with another one"}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        write_start(&w, 3, 2, 0);
        write_tensor(&w, "first", F32, 0, 1, 0);
        write_tensor(&w, "t", wrong[i].type, wrong[i].rows, wrong[i].cols, wrong[i].offset);
        write_padding(&w, 32);
        write_zeros(&w, 64);
        refuse(ERR_INVALID, wrong[i].words);
    }
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Changes some bytes, mostly of the header, often to values that make lengths large. */
static void mutate(uint8_t *bytes, size_t n, uint64_t *state) {
    static const uint8_t extremes[] = {0, 1, 0x7f, 0x80, 0xff};
    for (uint64_t i = 1 + next_random(state) % 4; i > 0; i--) {
        const size_t at = next_random(state) % n;
        bytes[at] = next_random(state) % 2 ? extremes[next_random(state) % sizeof(extremes)]
                                           : (uint8_t)next_random(state);
    }
}

/* Each mutation lies in memory of its own size, so that a sanitizer sees a byte too far. */
TEST(mutations_are_read_or_refused) {
    static volatile uint32_t sink;
    uint64_t random = 5;
    uint32_t n_read = 0;
    write_all(3);
    for (int i = 0; i < N_MUTATIONS; i++) {
        const size_t n = next_random(&random) % 4 ? w.n : next_random(&random) % w.n + 1;
        uint8_t *bytes = malloc(n);
        struct gguf *file = NULL;
        struct error err = {0};
        memcpy(bytes, w.bytes, n);
        mutate(bytes, n, &random);
        if (gguf_parse(&file, bytes, n, "m.gguf", &err) == 0) sink += visit_all(file), n_read++;
        else assert_true(err.text[0] != '\0');
        gguf_destroy(file);
        free(bytes);
    }
    assert_in_range(n_read, N_MUTATIONS / 10, N_MUTATIONS * 9 / 10); /* both ends are tested */
}
