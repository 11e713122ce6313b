/* test_safetensors.c - files that tell the truth are read, every lie is refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "engine/device/weight.h"
#include "engine/model/safetensors.h"
#include "engine/model/weight_source.h"
#include "tests/test.h"

enum { LENGTH_BYTES = 8, MAX_FILE = 8192 };

/* A file of this header, padded with spaces to 8 bytes as writers do, and n_data zero bytes. */
struct image {
    _Alignas(8) unsigned char bytes[MAX_FILE];
    size_t size;
};

static void put_length(struct image *image, uint64_t length) {
    for (int i = 0; i < LENGTH_BYTES; i++) image->bytes[i] = (unsigned char)(length >> (8 * i));
}

static void make_image(struct image *image, const char *header, size_t n_data) {
    const size_t n = strlen(header), padded = (n + 7) / 8 * 8;
    assert_true(LENGTH_BYTES + padded + n_data <= MAX_FILE);
    memset(image->bytes, 0, sizeof(image->bytes));
    memset(image->bytes + LENGTH_BYTES, ' ', padded);
    memcpy(image->bytes + LENGTH_BYTES, header, n);
    put_length(image, padded);
    image->size = LENGTH_BYTES + padded + n_data;
}

/* Parses a copy of exactly the file's size, so that a sanitizer sees a read beyond it. */
static int parse(const struct image *image, struct safetensors **out, void **copy,
                 struct error *err) {
    *copy = malloc(image->size ? image->size : 1);
    assert_non_null(*copy);
    memcpy(*copy, image->bytes, image->size);
    return safetensors_parse(out, *copy, image->size, "t.safetensors", err);
}

static void expect_refused(const struct image *image, const char *needle) {
    struct safetensors *file = NULL;
    struct error err = {0};
    void *copy;
    assert_int_equal(parse(image, &file, &copy, &err), ERR_INVALID);
    assert_null(file);
    assert_non_null(strstr(err.text, "t.safetensors"));
    if (!strstr(err.text, needle)) fail_msg("'%s' does not say '%s'", err.text, needle);
    free(copy);
}

static void expect_header_refused(const char *header, size_t n_data, const char *needle) {
    struct image image;
    make_image(&image, header, n_data);
    expect_refused(&image, needle);
}

TEST(reads_tensors_of_a_good_file) {
    struct image image;
    struct safetensors *file = NULL;
    struct error err = {0};
    struct weight w = {0};
    void *copy;
    make_image(&image,
               "{\"__metadata__\":{\"format\":\"pt\"},"
               "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[24,30]},"
               "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
               "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[24,24]}}",
               30);
    image.bytes[image.size - 6] = 42; /* the first byte of b */
    assert_int_equal(parse(&image, &file, &copy, &err), 0);
    assert_int_equal(safetensors_count(file), 3);
    assert_int_equal(safetensors_get(file, "a", &(struct tensor_shape){2, {2, 3}}, &w, &err), 0);
    assert_int_equal(w.format.element, ELEMENT_F32);
    assert_int_equal(w.rows, 2);
    assert_int_equal(w.cols, 3);
    assert_int_equal(safetensors_get(file, "b", &(struct tensor_shape){1, {3}}, &w, &err), 0);
    assert_int_equal(w.format.element, ELEMENT_BF16);
    assert_int_equal(*(const unsigned char *)w.data, 42);
    assert_int_equal(safetensors_has(file, "empty", &err), 0);
    safetensors_destroy(file);
    free(copy);
}

TEST(refuses_a_header_longer_than_the_file) {
    struct image image;
    make_image(&image, "{}", 0);
    put_length(&image, 9);
    expect_refused(&image, "a header of 9 bytes in a file of 16");
    put_length(&image, UINT64_MAX);
    expect_refused(&image, "a header of 18446744073709551615 bytes");
    put_length(&image, UINT64_MAX - 7); /* length + 8 would wrap to 0 */
    expect_refused(&image, "in a file of 16");
    for (image.size = 0; image.size < LENGTH_BYTES; image.size++)
        expect_refused(&image, "too short");
}

TEST(refuses_a_header_beyond_the_limit) {
    struct error err = {0};
    struct safetensors *file = NULL;
    const uint64_t length = SAFETENSORS_MAX_HEADER + 1ull;
    unsigned char *bytes = calloc(1, LENGTH_BYTES + length); /* untouched pages: costs no memory */
    assert_non_null(bytes);
    for (int i = 0; i < LENGTH_BYTES; i++) bytes[i] = (unsigned char)(length >> (8 * i));
    assert_int_equal(safetensors_parse(&file, bytes, LENGTH_BYTES + length, "t", &err),
                     ERR_INVALID);
    assert_non_null(strstr(err.text, "more than the 100000000 allowed"));
    free(bytes);
}

TEST(refuses_headers_that_are_not_an_object) {
    expect_header_refused("", 0, "line 1");
    expect_header_refused("[]", 0, "not a JSON object");
    expect_header_refused("{\"a\":", 0, "line 1");
    expect_header_refused("{} {}", 0, "line 1");
    expect_header_refused("{\"a\":{},\"a\":{}}", 0, "duplicate");
}

TEST(refuses_deep_and_wide_json_before_parsing_it) {
    struct error err = {0};
    json_t *root = NULL;
    char deep[JSON_GUARD_MAX_DEPTH + 64] = "{\"a\":";
    memset(deep + 5, '[', JSON_GUARD_MAX_DEPTH);
    expect_header_refused(deep, 0, "nests deeper");

    const size_t n = 3 * (size_t)JSON_GUARD_MAX_VALUES;
    char *wide = malloc(n);
    assert_non_null(wide);
    for (size_t i = 0; i < n; i++) wide[i] = "[],"[i % 3];
    assert_int_equal(json_guard_parse(&root, wide, n, "w", &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "holds more than"));
    free(wide);
}

TEST(brackets_inside_strings_are_not_nesting) {
    struct error err = {0};
    json_t *root = NULL;
    char text[JSON_GUARD_MAX_DEPTH + 64] = "{\"a\":\"\\\"";
    memset(text + strlen(text), '[', JSON_GUARD_MAX_DEPTH + 1);
    strcat(text, "\"}");
    assert_int_equal(json_guard_parse(&root, text, strlen(text), "s", &err), 0);
    json_decref(root);
}

#define ENTRY(dtype, shape, offsets)                                                               \
    "{\"lied\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

TEST(refuses_malformed_entries) {
    expect_header_refused("{\"lied\":7}", 0, "'lied': its header entry is not an object");
    expect_header_refused("{\"lied\":{}}", 0, "'lied': unknown 'dtype'");
    expect_header_refused(ENTRY("\"F7\"", "[1]", "[0,1]"), 1, "'lied': unknown 'dtype'");
    expect_header_refused(ENTRY("3", "[1]", "[0,1]"), 1, "'lied': unknown 'dtype'");
    expect_header_refused(ENTRY("\"U8\"", "4", "[0,4]"), 4, "'lied': 'shape' is not a list");
    expect_header_refused(ENTRY("\"U8\"", "[-1]", "[0,4]"), 4, "'lied': 'shape' holds");
    expect_header_refused(ENTRY("\"U8\"", "[4.0]", "[0,4]"), 4, "'lied': 'shape' holds");
    expect_header_refused(ENTRY("\"U8\"", "[\"4\"]", "[0,4]"), 4, "'lied': 'shape' holds");
    expect_header_refused(ENTRY("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1,
                          "'lied': too many dimensions");
    expect_header_refused(ENTRY("\"U8\"", "[4]", "[4]"), 4, "'lied': 'data_offsets' is not");
    expect_header_refused(ENTRY("\"U8\"", "[4]", "[0,2,4]"), 4, "'lied': 'data_offsets' is not");
    expect_header_refused(ENTRY("\"U8\"", "[4]", "[-4,0]"), 4, "'lied': 'data_offsets' is not");
    expect_header_refused(ENTRY("\"U8\"", "[4]", "{}"), 4, "'lied': 'data_offsets' is not");
}

TEST(refuses_sizes_that_overflow) {
    /* 2^32 * 2^32 is 0 in 64 bits, and 2^62 floats are 0 bytes. */
    expect_header_refused(ENTRY("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0,
                          "'lied': the size of its shape");
    expect_header_refused(ENTRY("\"F32\"", "[4611686018427387904]", "[0,0]"), 0,
                          "'lied': the size of its shape");
    expect_header_refused(ENTRY("\"U8\"", "[99999999999999999999]", "[0,0]"), 0,
                          "'shape' holds something other than a size");
}

TEST(refuses_offsets_outside_the_data) {
    expect_header_refused(ENTRY("\"U8\"", "[8]", "[0,8]"), 7,
                          "'lied': its data reaches past the end");
    expect_header_refused(ENTRY("\"U8\"", "[0]", "[9,9]"), 8,
                          "'lied': its data reaches past the end");
    expect_header_refused(ENTRY("\"U8\"", "[4]", "[8,4]"), 8,
                          "'lied': its data ends before it begins");
    expect_header_refused(ENTRY("\"U8\"", "[4]", "[0,9223372036854775807]"), 8, "past the end");
}

TEST(refuses_a_length_that_is_not_the_shape) {
    expect_header_refused(ENTRY("\"F32\"", "[4]", "[0,15]"), 16, "'lied': its data is not as long");
    expect_header_refused(ENTRY("\"BF16\"", "[4]", "[0,16]"), 16,
                          "'lied': its data is not as long");
}

TEST(refuses_overlapping_tensors) {
    expect_header_refused("{\"x\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
                          "\"y\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[7,15]}}",
                          16, "'y' overlaps tensor 'x'");
    expect_header_refused("{\"x\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
                          "\"y\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
                          16, "overlaps");
}

TEST(get_refuses_what_was_not_asked_for) {
    struct image image;
    struct safetensors *file = NULL;
    struct error err = {0};
    struct weight w = {0};
    void *copy;
    make_image(&image,
               "{\"i\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]},"
               "\"m\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
               "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[20,24]},"
               "\"odd\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[24,25]},"
               "\"skew\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[25,29]}}",
               29);
    assert_int_equal(parse(&image, &file, &copy, &err), 0);
    assert_int_equal(safetensors_get(file, "gone", &(struct tensor_shape){1, {2}}, &w, &err),
                     ERR_NOT_FOUND);
    assert_string_equal(err.text, "t.safetensors: no tensor 'gone'");
    assert_int_equal(safetensors_get(file, "i", &(struct tensor_shape){1, {2}}, &w, &err),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "'i': dtype I32"));
    assert_int_equal(safetensors_get(file, "m", &(struct tensor_shape){2, {3, 2}}, &w, &err),
                     ERR_INVALID);
    assert_non_null(
        strstr(err.text, "'m': its shape is [2, 3], the configuration asks for [3, 2]"));
    assert_int_equal(safetensors_get(file, "m", &(struct tensor_shape){1, {6}}, &w, &err),
                     ERR_INVALID);
    assert_int_equal(safetensors_get(file, "m", &(struct tensor_shape){2, {2, 4}}, &w, &err),
                     ERR_INVALID);
    assert_int_equal(safetensors_get(file, "s", &(struct tensor_shape){1, {1}}, &w, &err),
                     ERR_INVALID);
    assert_int_equal(safetensors_get(file, "skew", &(struct tensor_shape){1, {2}}, &w, &err),
                     ERR_INVALID);
    assert_non_null(strstr(err.text, "'skew': its data is not aligned"));
    assert_null(w.data); /* nothing of the above was handed out */
    safetensors_destroy(file);
    free(copy);
}

TEST(any_truncation_is_refused) {
    struct image image;
    make_image(&image, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24);
    for (image.size--; image.size > 0; image.size--) expect_refused(&image, "t.safetensors");
}
