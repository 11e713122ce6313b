/* test_output.c - text and tokens on their way out, against a naive scan of the whole text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/sample.h"
#include "engine/request/channels.h"
#include "engine/request/event.h"
#include "engine/request/output.h"
#include "engine/request/request.h"
#include "tests/engine/fake_tokenizer.h"
#include "tests/test.h"

/* The first byte position at which a stop string is complete; the longest wins.  0: none. */
static size_t naive_stop(const char *text, char **stops, uint32_t n_stops, uint32_t *index) {
    for (size_t end = 1; end <= strlen(text); end++) {
        size_t best = 0;
        for (uint32_t i = 0; i < n_stops; i++) {
            size_t n = strlen(stops[i]);
            if (n <= end && n > best && memcmp(text + end - n, stops[i], n) == 0)
                best = n, *index = i;
        }
        if (best) return end;
    }
    return 0;
}

/* True when the end of text could still become a stop string, beginning at byte `from` or later. */
static size_t naive_held(const char *text, char **stops, uint32_t n_stops) {
    size_t n_text = strlen(text);
    for (size_t n = n_text; n > 0; n--)
        for (uint32_t i = 0; i < n_stops; i++)
            if (n < strlen(stops[i]) && memcmp(text + n_text - n, stops[i], n) == 0) return n;
    return 0;
}

struct reader {
    char text[512];
    uint32_t n_tokens;
};

static void read_event(struct reader *r, struct output *out, bool last) {
    struct engine_event *event;
    assert_int_equal(output_take(out, last, &event), 0);
    if (!event) return;
    assert_int_equal(strlen(event->text), event->text_length);
    assert_true(last || event->text_length > 0 || event->n_tokens > 0);
    strcat(r->text, event->text);
    for (uint32_t i = 0; i < event->n_tokens; i++) {
        assert_int_equal(event->tokens[i].token % 1000, event->tokens[i].token);
        assert_true(event->tokens[i].logprob == -(float)r->n_tokens);
        assert_int_equal(event->tokens[i].n_top, r->n_tokens % 3);
        if (event->tokens[i].n_top) assert_int_equal(event->tokens[i].top[0].token, r->n_tokens);
        r->n_tokens++;
    }
    engine_event_free(event);
}

static struct sample_result result(uint32_t token, uint32_t number) {
    struct sample_result r = {.token = token, .logprob = -(float)number, .n_top = number % 3};
    r.top[0].token = number;
    return r;
}

TEST(random_text_stops_where_a_scan_of_the_whole_would) {
    char *all_stops[] = {"abab",
                         "cab",
                         "b\xc3\xa9",
                         "\xe2\x82\xac",
                         "aabaa",
                         "ca",
                         "\xc3\xa9"
                         "a",
                         "bbbb"};
    enum { N_STOPS = sizeof(all_stops) / sizeof(all_stops[0]) };
    srand(3);
    for (int round = 0; round < 20000; round++) {
        char *stops[3];
        struct sampling_params params = sampling_defaults();
        params.n_logprobs = 2;
        params.include_stop = rand() % 2;
        params.stop = stops;
        params.n_stop = (uint32_t)rand() % 4;
        for (uint32_t i = 0; i < params.n_stop; i++) stops[i] = all_stops[rand() % N_STOPS];
        struct output out;
        struct reader r = {0};
        char whole[512] = "";
        uint32_t n_tokens = 1 + (uint32_t)rand() % 20, index = 99, expected_index = 99, pushed = 0;
        int stopped = 0;
        assert_int_equal(output_init(&out, fake_tokenizer, &params), 0);
        while (pushed < n_tokens && !stopped) {
            /* Letters, pieces, and multi-byte characters cut in two: never an invalid sequence. */
            static const uint32_t sets[][2] = {{'a', 0}, {'b', 0},   {'c', 0}, {256, 0},
                                               {257, 0}, {258, 0},   {259, 0}, {260, 261},
                                               {262, 0}, {263, 0xa9}};
            const uint32_t *set = sets[rand() % 10];
            for (int i = 0; i < 2 && set[i] && !stopped; i++) {
                size_t length;
                const char *bytes = tokenizer_token_bytes(fake_tokenizer, set[i], &length);
                strncat(whole, bytes, length);
                struct sample_result sample = result(set[i], pushed++);
                stopped = output_push(&out, &sample, OUTPUT_TEXT, &index);
                assert_true(stopped >= 0);
                if (stopped) break;
                read_event(&r, &out, false);
                if (out.detokenizer.n_pending > 0) continue;
                size_t held = naive_held(whole, stops, params.n_stop);
                /* As early as possible, no earlier. */
                assert_int_equal(strlen(r.text), strlen(whole) - held);
                if (held == 0) assert_int_equal(r.n_tokens, pushed);
            }
        }
        size_t end = naive_stop(whole, stops, params.n_stop, &expected_index);
        assert_int_equal(stopped, end > 0);
        if (end) {
            assert_string_equal(stops[index], stops[expected_index]);
            whole[params.include_stop ? end : end - strlen(stops[index])] = 0;
        } else {
            assert_int_equal(output_flush(&out), 0);
        }
        read_event(&r, &out, true);
        assert_string_equal(r.text, whole);
        assert_int_equal(r.n_tokens, pushed);
        output_fini(&out);
    }
}

TEST(early_text_cannot_stop) {
    char *stops[] = {"ab"};
    struct sampling_params params = sampling_defaults();
    params.stop = stops;
    params.n_stop = 1;
    params.n_logprobs = 2;
    struct output out;
    struct reader r = {0};
    uint32_t index;
    assert_int_equal(output_init(&out, fake_tokenizer, &params), 0);
    struct sample_result ab = result(256, 0), b = result('b', 1), again = result(256, 2);
    assert_int_equal(output_push(&out, &ab, OUTPUT_EARLY, &index), 0);
    read_event(&r, &out, false);
    assert_string_equal(r.text, "ab");
    assert_int_equal(output_push(&out, &b, OUTPUT_TEXT, &index), 0);
    assert_int_equal(output_push(&out, &again, OUTPUT_TEXT, &index), 1);
    read_event(&r, &out, true);
    assert_string_equal(r.text, "abb");
    output_fini(&out);
}

/* Pushes a text byte by byte, and reads what is shown after each. */
static bool stops_in(struct sampling_params params, const char *text, uint32_t n_early,
                     const char *shown) {
    params.n_logprobs = 2;
    struct output out;
    struct reader r = {0};
    uint32_t index;
    int stopped = 0;
    assert_int_equal(output_init(&out, fake_tokenizer, &params), 0);
    for (uint32_t i = 0; text[i] && !stopped; i++) {
        const struct sample_result byte = result((unsigned char)text[i], i);
        stopped = output_push(&out, &byte, i < n_early ? OUTPUT_EARLY : OUTPUT_TEXT, &index);
        assert_true(stopped >= 0);
        if (!stopped) read_event(&r, &out, false);
    }
    if (!stopped) assert_int_equal(output_flush(&out), 0);
    read_event(&r, &out, true);
    assert_string_equal(r.text, shown);
    output_fini(&out);
    return stopped;
}

static bool stops_at(enum thought_place place, const char *text, char **stops, uint32_t n_stops,
                     uint32_t n_early, const char *shown) {
    struct sampling_params params = sampling_defaults();
    params.stop = stops;
    params.n_stop = n_stops;
    params.thought.place = place;
    return stops_in(params, text, n_early, shown);
}

TEST(early_text_may_begin_a_stop_string) {
    char *ab[] = {"ab"}, *aba[] = {"aba"}, *longer[] = {"xab", "b"};
    assert_true(stops_at(THOUGHT_BEHIND, "ab", ab, 1, 1, ""));
    assert_true(stops_at(THOUGHT_BEHIND, "ababab", aba, 1, 3, "ab"));
    assert_true(stops_at(THOUGHT_BEHIND, "bxab", longer, 2, 3, "b"));
    assert_false(stops_at(THOUGHT_BEHIND, "aba", ab, 1, 2, "aba"));
    assert_true(stops_at(THOUGHT_BEFORE, " a b", (char *[]){" a b"}, 1, 2, ""));
}

/* The tokens ^, | and $ are marks of channels. */
TEST(stop_strings_end_what_is_said_on_a_channel) {
    struct shown_token marks[] = {{'^', CHANNEL_NAME[0], false},
                                  {'|', CHANNEL_MESSAGE[0], false},
                                  {'$', CHANNEL_END[0], false}};
    char *stops[] = {"ab", "final"};
    struct sampling_params params = sampling_defaults();
    params.shown = marks;
    params.n_shown = 3;
    params.stop = stops;
    params.n_stop = 2;
    params.thought = channels_begin();
#define THOUGHT CHANNEL_NAME "analysis" CHANNEL_MESSAGE
#define SAID CHANNEL_NAME "final" CHANNEL_MESSAGE
    assert_true(stops_in(params, "^analysis|ab$^final|xab", 0, THOUGHT "ab" CHANNEL_END SAID "x"));
    assert_false(stops_in(params, "^final|a$^final|b", 0, SAID "a" CHANNEL_END SAID "b"));
    assert_true(stops_in(params, "^final|aab", 0, SAID "a"));
    assert_true(stops_in(params, "plain ab", 0, "plain "));
#undef THOUGHT
#undef SAID
}

TEST(stop_strings_end_no_thought) {
    char *ab[] = {"ab"}, *lines[] = {"\n"}, *marks[] = {"<", "think>"};
    assert_true(stops_at(THOUGHT_INSIDE, "ab</think>xab", ab, 1, 0, "ab</think>x"));
    assert_true(stops_at(THOUGHT_INSIDE, "a</think>bab", ab, 1, 0, "a</think>b"));
    assert_false(stops_at(THOUGHT_INSIDE, "ab ab", ab, 1, 0, "ab ab"));
    assert_true(stops_at(THOUGHT_BEFORE, "ab", ab, 1, 0, ""));
    assert_true(stops_at(THOUGHT_BEFORE, " <think>ab</think>ab", ab, 1, 0, " <think>ab</think>"));
    assert_true(stops_at(THOUGHT_BEFORE, " \nx", lines, 1, 0, " "));
    assert_true(stops_at(THOUGHT_BEFORE, "\n<think>\n</think>\n\na\nb", lines, 1, 0,
                         "\n<think>\n</think>\n\na"));
    assert_true(stops_at(THOUGHT_BEFORE, "<thinker", marks, 2, 0, ""));
    assert_true(stops_at(THOUGHT_BEFORE, "<think><a</think>b<", marks, 2, 0, "<think><a</think>b"));
    assert_false(stops_at(THOUGHT_BEFORE, "<think><a</thin", marks, 2, 0, "<think><a</thin"));
    assert_true(
        stops_at(THOUGHT_BEFORE, " <think>ab</think>abab", ab, 1, 20, " <think>ab</think>ab"));
    assert_true(stops_at(THOUGHT_BEHIND, "<think>ab", ab, 1, 0, "<think>"));
}

TEST(tokens_may_be_hidden) {
    struct shown_token hidden[] = {{.token = 'b', .is_hidden = true}};
    struct sampling_params params = sampling_defaults();
    params.shown = hidden;
    params.n_shown = 1;
    params.skip_special = false;
    assert_false(stops_in(params, "abcb", 0, "ac"));
}

TEST(special_tokens_may_be_shown) {
    struct shown_token shown[] = {{.token = FAKE_EOS}};
    for (uint32_t n = 0; n < 2; n++) {
        struct sampling_params params = sampling_defaults();
        params.shown = shown;
        params.n_shown = n;
        params.n_logprobs = 2;
        struct output out;
        struct reader r = {0};
        uint32_t index;
        assert_int_equal(output_init(&out, fake_tokenizer, &params), 0);
        struct sample_result end = result(FAKE_EOS, 0);
        assert_int_equal(output_push(&out, &end, OUTPUT_TEXT, &index), 0);
        read_event(&r, &out, true);
        assert_string_equal(r.text, n ? "<end>" : "");
        output_fini(&out);
    }
}

TEST(end_tokens_count_but_show_only_on_demand) {
    struct sampling_params params = sampling_defaults();
    params.skip_special = false;
    params.n_logprobs = 2;
    for (int shown = 0; shown < 2; shown++) {
        struct output out;
        struct reader r = {0};
        uint32_t index;
        assert_int_equal(output_init(&out, fake_tokenizer, &params), 0);
        struct sample_result end = result(FAKE_EOS, 0);
        assert_int_equal(output_push(&out, &end, shown ? OUTPUT_END : OUTPUT_SILENT, &index), 0);
        read_event(&r, &out, true);
        assert_string_equal(r.text, shown ? "<end>" : "");
        assert_int_equal(r.n_tokens, 1);
        output_fini(&out);
    }
}

TEST(an_unfinished_character_becomes_a_replacement) {
    struct sampling_params params = sampling_defaults();
    struct output out;
    struct engine_event *event;
    uint32_t index;
    params.n_logprobs = 2;
    assert_int_equal(output_init(&out, fake_tokenizer, &params), 0);
    struct sample_result half = result(260, 0);
    assert_int_equal(output_push(&out, &half, OUTPUT_TEXT, &index), 0);
    assert_int_equal(output_take(&out, false, &event), 0);
    assert_null(event); /* the token waits for its text */
    assert_int_equal(output_flush(&out), 0);
    assert_int_equal(output_take(&out, true, &event), 0);
    assert_string_equal(event->text, "\xef\xbf\xbd");
    assert_int_equal(event->n_tokens, 1);
    engine_event_free(event);
    output_fini(&out);
}
