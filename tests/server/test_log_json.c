/* test_log_json.c - every line becomes one legal object, and says what the line said. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "server/settings/log.h"
#include "server/settings/log_json.h"
#include "tests/test.h"

enum { OUT_BYTES = 8192 };

/* The object of a line, as Jansson reads it. */
static json_t *object_of(const char *text) {
    char *out = malloc(OUT_BYTES);
    assert_non_null(out);
    const size_t size = 4 * strlen(text) + 128;
    assert_true(size <= OUT_BYTES);
    const size_t n = log_json_write(out, size, "2026-11-21T07:21:39.120Z", "info", text);
    json_t *object = json_loadb(out, n, JSON_REJECT_DUPLICATES, NULL);
    if (!object) fail_msg("not JSON: %.*s", (int)n, out);
    free(out);
    return object;
}

static void assert_line(const char *text, const char *expected) {
    json_t *object = object_of(text), *wanted = json_loads(expected, 0, NULL);
    assert_non_null(wanted);
    json_object_set_new(wanted, "time", json_string("2026-11-21T07:21:39.120Z"));
    json_object_set_new(wanted, "level", json_string("info"));
    if (!json_equal(object, wanted)) fail_msg("%s", json_dumps(object, 0));
    json_decref(object);
    json_decref(wanted);
}

TEST(fields_become_members) {
    assert_line("request id=7f method=GET path=/v1/models status=200 ms=12",
                "{\"event\":\"request\",\"id\":\"7f\",\"method\":\"GET\",\"path\":\"/v1/models\","
                "\"status\":200,\"ms\":12}");
    assert_line("throughput running=0 kv_use=0.312 hit_rate=-",
                "{\"event\":\"throughput\",\"running\":0,\"kv_use\":0.312,\"hit_rate\":null}");
}

TEST(other_words_are_the_message) {
    assert_line("listening on http://127.0.0.1:8000",
                "{\"message\":\"listening on http://127.0.0.1:8000\"}");
    assert_line("request id=7f failed: a=b is wrong",
                "{\"event\":\"request\",\"id\":\"7f\",\"message\":\"failed: a=b is wrong\"}");
    assert_line("", "{}");
    assert_line("alone", "{\"message\":\"alone\"}");
    assert_line("model x=1y", "{\"event\":\"model\",\"x\":\"1y\"}");
}

/* A log store gives a member one type: an id of digits alone must be text as any other. */
TEST(what_clients_choose_stays_text) {
    assert_line("request id=123 path=- status=007",
                "{\"event\":\"request\",\"id\":\"123\",\"path\":\"-\",\"status\":\"007\"}");
}

TEST(a_quoted_value_is_what_the_client_sent) {
    static const char sent[] = "/a b\"\\\x1b=\xc3\xa9\xff status=500";
    char line[512], quoted[256];
    snprintf(line, sizeof(line), "request id=1 path=%s status=404",
             log_quote(quoted, sizeof(quoted), sent));
    json_t *object = object_of(line);
    /* The byte that is not UTF-8 is U+FFFD, and the rest as it was. */
    assert_string_equal(json_string_value(json_object_get(object, "path")),
                        "/a b\"\\\x1b=\xc3\xa9\xEF\xBF\xBD status=500");
    assert_int_equal(json_integer_value(json_object_get(object, "status")), 404);
    json_decref(object);
}

TEST(a_cut_value_says_so) {
    char quoted[24], line[128];
    snprintf(line, sizeof(line), "request path=%s status=200",
             log_quote(quoted, sizeof(quoted), "/with spaces and too long for it"));
    json_t *object = object_of(line);
    const char *path = json_string_value(json_object_get(object, "path"));
    assert_non_null(path);
    assert_string_equal(path + strlen(path) - 3, "...");
    assert_int_equal(json_integer_value(json_object_get(object, "status")), 200);
    json_decref(object);
}

static uint32_t draw(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

/* Whatever a line holds, the object is legal and its size is bounded. */
TEST(any_line_is_legal) {
    static const char hurting[] = "\"\\=   ab_09.-x\xc3\xa9\xff\xe2\x82";
    uint64_t random = 1;
    char text[400];
    for (int round = 0; round < 20000; round++) {
        const size_t n = draw(&random, sizeof(text));
        for (size_t i = 0; i < n; i++) text[i] = hurting[draw(&random, sizeof(hurting) - 1)];
        text[n] = 0;
        char out[4 * sizeof(text) + 128];
        const size_t length = log_json_write(out, 4 * n + 128, "t", "warn", text);
        json_t *object = json_loadb(out, length, 0, NULL);
        if (!object) fail_msg("round %d: %.*s", round, (int)length, out);
        json_decref(object);
    }
}
