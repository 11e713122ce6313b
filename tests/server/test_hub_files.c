/* test_hub_files.c - the hub's list of files: what a mirror may say, and what it may not. */
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/hub/files.h"
#include "tests/test.h"

#define SHA1 "0123456789abcdef0123456789abcdef01234567"

static int parse(struct hub_files *out, const char *licence, const char *path, const char *size) {
    char json[512];
    struct error err = {0};
    snprintf(json, sizeof(json),
             "{\"sha\":\"" SHA1 "\",\"cardData\":{\"license\":\"%s\"},\"siblings\":"
             "[{\"rfilename\":\"%s\",\"blobId\":\"" SHA1 "\",\"size\":%s}]}",
             licence, path, size);
    return hub_files_parse(out, json, strlen(json), &err);
}

TEST(a_licence_has_no_control_characters) {
    struct hub_files files;
    assert_int_equal(parse(&files, "a\\u001b[2Jb\\u0085\\u009b1mc\\u007f\\n\\u00e9", "x", "1"), 0);
    assert_string_equal(files.licence, "a[2Jb1mc\xc3\xa9");
    hub_files_fini(&files);
}

TEST(nor_has_a_path) {
    struct hub_files files;
    assert_int_equal(parse(&files, "mit", "x\\u009b2J", "1"), ERR_INVALID);
    assert_int_equal(parse(&files, "mit", "x\\u001b", "1"), ERR_INVALID);
    assert_int_equal(parse(&files, "mit", "\\u00e9", "1"), 0);
    hub_files_fini(&files);
}

TEST(sizes_are_bounded_so_that_their_sum_is_right) {
    struct hub_files files;
    assert_int_equal(parse(&files, "mit", "x", "281474976710657"), ERR_INVALID);
    assert_int_equal(parse(&files, "mit", "x", "9223372036854775807"), ERR_INVALID);
    assert_int_equal(parse(&files, "mit", "x", "281474976710656"), 0);
    assert_true(UINT64_MAX / HUB_FILES_MAX >= files.all[0].size);
    hub_files_fini(&files);
}
