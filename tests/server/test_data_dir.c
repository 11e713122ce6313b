/* test_data_dir.c - where a program finds what ships with it, from where its binary lies. */
#define _GNU_SOURCE /* nftw's flags */
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/settings/data_dir.h"
#include "server/settings/model_file.h"
#include "tests/test.h"

struct rig {
    char root[64];
    char path[PATH_MAX];
};

static int make_root(void **state) {
    struct rig *rig = calloc(1, sizeof(*rig));
    assert_non_null(rig);
    strcpy(rig->root, "/tmp/quire-data-XXXXXX");
    assert_non_null(mkdtemp(rig->root));
    *state = rig;
    return 0;
}

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *walk) {
    (void)stat, (void)kind, (void)walk;
    return remove(path);
}

static int remove_root(void **state) {
    struct rig *rig = *state;
    assert_int_equal(nftw(rig->root, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    free(rig);
    return 0;
}

static const char *in_root(struct rig *rig, const char *name) {
    snprintf(rig->path, sizeof(rig->path), "%s/%s", rig->root, name);
    return rig->path;
}

/* Makes the folders of a file and, unless the name ends in a slash, the file. */
static void make(struct rig *rig, const char *name) {
    in_root(rig, name);
    for (char *at = rig->path + strlen(rig->root) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        (void)mkdir(rig->path, 0700);
    }
    if (name[strlen(name) - 1] == '/') return;
    FILE *file = fopen(rig->path, "w");
    assert_non_null(file);
    fclose(file);
}

/* dir NULL: none is found. */
static void assert_found(struct rig *rig, const char *exe, const char *dir) {
    char found[PATH_MAX];
    struct error err = {0};
    const int rc = data_dir_find_from(found, in_root(rig, exe), &err);
    if (dir) {
        assert_int_equal(rc, 0);
        assert_string_equal(found, in_root(rig, dir));
    } else {
        assert_int_equal(rc, ERR_NOT_FOUND);
        assert_non_null(strstr(err.text, rig->root));
    }
}

TEST_WITH(an_installed_tree_is_found_from_its_binary, make_root, remove_root) {
    make(*state, "opt/bin/");
    make(*state, "opt/share/quire/config/quire.json");
    assert_found(*state, "opt/bin/quire", "opt/share/quire");
}

TEST_WITH(a_source_tree_is_found_from_a_build_folder_in_it, make_root, remove_root) {
    make(*state, "src/build/");
    make(*state, "src/config/quire.json");
    assert_found(*state, "src/build/quire", "src");
}

TEST_WITH(the_installed_tree_comes_first, make_root, remove_root) {
    make(*state, "opt/bin/");
    make(*state, "opt/config/quire.json");
    make(*state, "opt/share/quire/config/quire.json");
    assert_found(*state, "opt/bin/quire", "opt/share/quire");
}

TEST_WITH(a_directory_without_the_settings_is_no_data_directory, make_root, remove_root) {
    make(*state, "opt/bin/");
    make(*state, "opt/share/quire/models/");
    assert_found(*state, "opt/bin/quire", NULL);
}

TEST_WITH(a_binary_outside_the_build_folder_does_not_reach_the_source, make_root, remove_root) {
    make(*state, "bin/");
    assert_found(*state, "bin/quire", NULL);
}

TEST(a_name_that_begins_like_the_build_folder_is_another_folder) {
    char exe[PATH_MAX], found[PATH_MAX];
    snprintf(exe, sizeof(exe), "%s/tests/quire", BUILD_DIR);
    assert_int_equal(data_dir_find_from(found, exe, NULL), 0);
    assert_string_equal(found, SOURCE_DIR);
    snprintf(exe, sizeof(exe), "%s-other/tests/quire", BUILD_DIR);
    assert_int_equal(data_dir_find_from(found, exe, NULL), ERR_NOT_FOUND);
}

TEST_WITH(a_path_that_is_too_long_is_not_found, make_root, remove_root) {
    struct rig *rig = *state;
    char found[PATH_MAX];
    memset(rig->path, 'a', sizeof(rig->path) - 1);
    rig->path[0] = '/';
    memcpy(rig->path + sizeof(rig->path) - 7, "/quire", 7);
    assert_int_equal(data_dir_find_from(found, rig->path, NULL), ERR_NOT_FOUND);
}

TEST(a_test_of_the_build_folder_finds_the_source_tree) {
    char found[PATH_MAX], *file = NULL;
    assert_int_equal(data_dir_find(found, NULL), 0);
    assert_string_equal(found, SOURCE_DIR);
    assert_int_equal(model_file_choose(&file, NULL, "filters", "/no/such/quire-31m", NULL), 0);
    assert_string_equal(file, SOURCE_DIR "/config/filters/quire-31m.json");
    free(file);
    assert_int_equal(model_file_choose(&file, NULL, "filters", "/no/such/model", NULL), 0);
    assert_null(file);
}

TEST(a_model_that_is_named_is_taken_as_it_is) {
    char path[PATH_MAX], *longer = malloc(PATH_MAX + 1);
    struct error err = {0};
    assert_int_equal(model_dir_choose(path, "some/model", &err), 0);
    assert_string_equal(path, "some/model");
    assert_non_null(longer);
    memset(longer, 'a', PATH_MAX);
    longer[PATH_MAX] = 0;
    assert_int_equal(model_dir_choose(path, longer, &err), ERR_INVALID);
    free(longer);
}
