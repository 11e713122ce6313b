/* test_disk_format.c - files of the tier on disk: what is written is read, and anything else is
 * refused. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/crc32c.h"
#include "engine/base/error.h"
#include "engine/kv/disk/format.h"
#include "tests/test.h"

enum { N_TOKENS = 5, N_PAGES = 3, PAGE_BYTES = 96 };

static const uint32_t tokens[N_TOKENS] = {7, 0, 4000000000, 1, 2};
static const uint64_t secret[DIGEST_KEY_WORDS] = {1, 2, 3, 4};

static struct disk_head example(void) {
    struct disk_head head = {.key = {.kind = DISK_STATE,
                                     .n_before = 64,
                                     .n_tokens = N_TOKENS,
                                     .parent = {{11, 12}},
                                     .tokens = tokens},
                             .identity = {{21, 22}},
                             .notes = {31, 32},
                             .n_pages = N_PAGES,
                             .page_bytes = PAGE_BYTES};
    for (int i = 0; i < DISK_N_WORDS; i++) head.key.words[i] = 100 + (uint64_t)i;
    return head;
}

/* Returns the bytes of the example's file. */
static char *make_file(size_t *size) {
    const struct disk_head head = example();
    *size = disk_format_bytes(&head);
    char *file = malloc(*size);
    assert_non_null(file);
    char *pages = file + disk_format_payload(N_TOKENS);
    for (size_t i = 0; i < (size_t)N_PAGES * PAGE_BYTES; i++) pages[i] = (char)(i * 7);
    disk_format_write(file, &head);
    return file;
}

TEST(what_is_written_is_read) {
    size_t size;
    char *file = make_file(&size);
    const struct disk_head head = example();
    struct disk_head read;
    assert_int_equal(disk_format_read(&read, file, size), 0);
    assert_true(disk_key_same(&read.key, &head.key));
    assert_true(digest_same(read.identity, head.identity));
    assert_memory_equal(read.notes, head.notes, sizeof(head.notes));
    assert_int_equal(read.n_pages, N_PAGES);
    assert_int_equal(read.page_bytes, PAGE_BYTES);
    const char *pages = file + disk_format_payload(N_TOKENS);
    for (size_t i = 0; i < (size_t)N_PAGES * PAGE_BYTES; i++)
        assert_int_equal(pages[i], (char)(i * 7));
    free(file);
}

/* Every bit matters, also those of padding and of the checksums themselves. */
TEST(any_flipped_bit_is_noticed) {
    size_t size;
    char *file = make_file(&size);
    struct disk_head read;
    for (size_t bit = 0; bit < 8 * size; bit++) {
        file[bit / 8] ^= (char)(1 << bit % 8);
        assert_int_equal(disk_format_read(&read, file, size), ERR_INVALID);
        file[bit / 8] ^= (char)(1 << bit % 8);
    }
    assert_int_equal(disk_format_read(&read, file, size), 0);
    free(file);
}

/* Each length has its own allocation, so that a sanitiser sees what is read behind its end. */
TEST(any_other_length_is_noticed) {
    size_t size;
    char *file = make_file(&size);
    struct disk_head read;
    for (size_t n = 0; n < size + 200; n++) {
        if (n == size) continue;
        char *other = calloc(n + 1, 1);
        assert_non_null(other);
        memcpy(other, file, n < size ? n : size);
        assert_int_equal(disk_format_read(&read, other, n), ERR_INVALID);
        free(other);
    }
    free(file);
}

/* Numbers whose sums would wrap, with checksums that are right. */
TEST(sizes_that_do_not_fit_are_refused) {
    static const struct {
        uint32_t n_tokens, n_pages;
        uint64_t page_bytes;
    } wrong[] = {{UINT32_MAX, 0, 64},
                 {UINT32_MAX, UINT32_MAX, UINT64_MAX},
                 {N_TOKENS, UINT32_MAX, UINT64_MAX},
                 {N_TOKENS, N_PAGES, 0},
                 {N_TOKENS, 0, 0},
                 {N_TOKENS, 1, N_PAGES * PAGE_BYTES + 1},
                 {N_TOKENS, 2, UINT64_C(1) << 63}};
    enum { N_TOKENS_AT = 112, N_PAGES_AT = 116, PAGE_BYTES_AT = 136, HEAD_CRC_AT = 148 };
    size_t size;
    char *file = make_file(&size);
    struct disk_head read;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        memcpy(file + N_TOKENS_AT, &wrong[i].n_tokens, sizeof(uint32_t));
        memcpy(file + N_PAGES_AT, &wrong[i].n_pages, sizeof(uint32_t));
        memcpy(file + PAGE_BYTES_AT, &wrong[i].page_bytes, sizeof(uint64_t));
        memset(file + HEAD_CRC_AT, 0, sizeof(uint32_t));
        const uint32_t crc = crc32c(0, file, disk_format_payload(N_TOKENS));
        memcpy(file + HEAD_CRC_AT, &crc, sizeof(crc));
        assert_int_equal(disk_format_read(&read, file, size), ERR_INVALID);
    }
    free(file);
}

TEST(every_part_of_a_key_matters) {
    const struct disk_key key = example().key;
    const uint32_t other_tokens[N_TOKENS] = {7, 0, 4000000000, 1, 3};
    struct disk_key others[8];
    for (int i = 0; i < 8; i++) others[i] = key;
    others[0].kind = DISK_BLOCK;
    others[1].n_before++;
    others[2].n_tokens--;
    others[3].words[0]++;
    others[4].words[DISK_N_WORDS - 1]++;
    others[5].parent.words[0]++;
    others[6].parent.words[1]++;
    others[7].tokens = other_tokens;
    const struct digest_value name = disk_key_name(&key, secret);
    assert_true(disk_key_same(&key, &key));
    for (int i = 0; i < 8; i++) {
        assert_false(disk_key_same(&key, &others[i]));
        assert_false(digest_same(disk_key_name(&others[i], secret), name));
    }
    for (int i = 0; i < DIGEST_KEY_WORDS; i++) {
        uint64_t another[DIGEST_KEY_WORDS];
        memcpy(another, secret, sizeof(another));
        another[i]++;
        assert_false(digest_same(disk_key_name(&key, another), name));
    }
}

/* The check value is the published one. */
TEST(checksums_are_crc32c) {
    char bytes[300];
    assert_int_equal(crc32c(0, "123456789", 9), 0xE3069283);
    assert_int_equal(crc32c_plain(0, "123456789", 9), 0xE3069283);
    for (size_t i = 0; i < sizeof(bytes); i++) bytes[i] = (char)(i * i);
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n + from <= sizeof(bytes); n++) {
            const uint32_t crc = crc32c(0, bytes + from, n);
            assert_int_equal(crc, crc32c_plain(0, bytes + from, n));
            assert_int_equal(
                crc, crc32c(crc32c(0, bytes + from, n / 3), bytes + from + n / 3, n - n / 3));
        }
}
