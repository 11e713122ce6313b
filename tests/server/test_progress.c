/* test_progress.c - what a search says of how far it is. */

#include "server/settings/progress.h"
#include "tests/test.h"

static void assert_line(double done, double given, double now_s, const char *expected) {
    const struct progress progress = {.name = "tune",
                                      .total = 100,
                                      .done = done,
                                      .shown = done / 100,
                                      .given = given,
                                      .begun_s = 1000};
    char line[160];
    progress_line(&progress, now_s, "layer 1", line, sizeof(line));
    assert_string_equal(line, expected);
}

TEST(what_is_left_takes_as_long_as_what_was_done) {
    assert_line(25, 0, 1010, "tune: [######------------------]  25 %, 30 s left: layer 1");
    assert_line(50, 0, 1090, "tune: [############------------]  50 %, 1 min 30 s left: layer 1");
    assert_line(1, 0, 1100, "tune: [------------------------]   1 %, 2 h 45 min left: layer 1");
    assert_line(100, 0, 1100, "tune: [#######################-]  99 %, 0 s left: layer 1");
}

/* What an earlier run did says nothing about this one's speed. */
TEST(an_earlier_run_is_not_counted) {
    assert_line(75, 50, 1010, "tune: [##################------]  75 %, 10 s left: layer 1");
    assert_line(50, 50, 1010, "tune: [############------------]  50 %, layer 1");
}

TEST(lines_are_cut_to_size) {
    const struct progress progress = {
        .name = "tune", .total = 2, .done = 3, .shown = 1.5, .begun_s = 0};
    char line[12];
    progress_line(&progress, 1, "x", line, sizeof(line));
    assert_string_equal(line, "tune: [####");
}

/* A ladder that has to go on climbs past what was foreseen. */
TEST(more_to_do_does_not_take_it_back) {
    struct progress progress;
    char line[160];
    progress_begin(&progress, "tune", 100, 0);
    progress_add(&progress, 80, "a");
    progress_expect(&progress, 100);
    progress_add(&progress, 20, "b");
    progress_line(&progress, progress.begun_s + 10, "b", line, sizeof(line));
    assert_string_equal(line, "tune: [###################-----]  80 %, 10 s left: b");
    progress_add(&progress, 80, "c");
    progress_line(&progress, progress.begun_s + 9, "c", line, sizeof(line));
    assert_string_equal(line, "tune: [#####################---]  90 %, 1 s left: c");
    progress_end(&progress);
}
