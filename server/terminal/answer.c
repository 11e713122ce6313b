/* answer.c - see answer.h. */
#include "server/terminal/answer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "server/terminal/asked_server.h"

/* The longest line of a stream, or body of an error, that is read. */
enum { MAX_LINE_BYTES = 4 << 20 };

static const char dim[] = "\033[2m", plain[] = "\033[0m";

/* The reading of one answer. */
struct reading {
    struct answer *answer;
    const struct answer_look *look;
    unsigned status;
    struct buffer line; /* of the stream, up to its end; of an error all of it */
    double begun_s, first_s, last_s;
    bool thinks, is_done;
    struct error failure; /* code 0: none */
};

struct answer_look answer_look_of_stdout(bool apart) {
    const bool is_terminal = isatty(STDOUT_FILENO);
    const char *no_color = getenv("NO_COLOR");
    struct answer_look look = {.out = stdout, .is_terminal = is_terminal};
    if (apart ? isatty(STDERR_FILENO) : is_terminal) look.reasoning = apart ? stderr : stdout;
    look.has_colours = look.reasoning && !(no_color && *no_color);
    return look;
}

/* ---- printing ---- */

/* Returns the length of the first character if it controls a terminal; 0: it does not. */
static size_t control_length(const unsigned char *at, size_t n) {
    if (*at == 0x7F || (*at < 0x20 && *at != '\n' && *at != '\t')) return 1;
    return n > 1 && at[0] == 0xC2 && at[1] < 0xA0 ? 2 : 0;
}

/* Prints a text, without what controls a terminal if `is_terminal`. */
static void print(FILE *out, const char *text, size_t n, bool is_terminal) {
    size_t begin = 0, i = 0;
    while (is_terminal && i < n) {
        const size_t length = control_length((const unsigned char *)text + i, n - i);
        if (length > 0) {
            fwrite(text + begin, 1, i - begin, out);
            begin = i + length;
        }
        i += length ? length : 1;
    }
    fwrite(text + begin, 1, n - begin, out);
    fflush(out);
}

/* Drops what controls a terminal from a text, which a server may have written. */
static void drop_controls(char *text) {
    const size_t n = strlen(text);
    size_t length = 0;
    for (size_t i = 0; i < n;) {
        const size_t skipped = control_length((const unsigned char *)text + i, n - i);
        if (skipped == 0) text[length++] = text[i];
        i += skipped ? skipped : 1;
    }
    text[length] = 0;
}

/* Begins or ends the part of the output that is reasoning. */
static void set_thinking(struct reading *r, bool thinks) {
    const struct answer_look *look = r->look;
    if (r->thinks == thinks || !look->reasoning) return;
    r->thinks = thinks;
    if (look->has_colours) fputs(thinks ? dim : plain, look->reasoning);
    if (!thinks) fputs("\n\n", look->reasoning);
    fflush(look->reasoning);
}

/* ---- the stream ---- */

static int fail(struct reading *r, int code, const char *text) {
    return error_set(&r->failure, code, "%.500s", text);
}

static void note_token(struct reading *r) {
    r->last_s = clock_seconds();
    if (r->first_s == 0) r->first_s = r->last_s;
}

static void take_text(struct reading *r, const json_t *text) {
    const size_t n = json_string_length(text);
    if (n == 0) return;
    note_token(r);
    set_thinking(r, false);
    print(r->look->out, json_string_value(text), n, r->look->is_terminal);
    buffer_append(&r->answer->text, json_string_value(text), n);
}

static void take_reasoning(struct reading *r, const json_t *text) {
    const size_t n = json_string_length(text);
    if (n == 0) return;
    note_token(r);
    if (!r->look->reasoning) return;
    set_thinking(r, true);
    print(r->look->reasoning, json_string_value(text), n, true);
}

/* Takes an event of a chat's stream, or of a completion's. */
static void take_event(struct reading *r, const json_t *event) {
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0),
                 *delta = json_object_get(choice, "delta"),
                 *reasoning = json_object_get(delta, "reasoning_content"),
                 *error = json_object_get(event, "error"),
                 *n = json_object_get(json_object_get(event, "usage"), "completion_tokens");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason")),
               *why = json_string_value(json_object_get(error, "message"));
    take_reasoning(r, reasoning ? reasoning : json_object_get(delta, "reasoning"));
    take_text(r, delta ? json_object_get(delta, "content") : json_object_get(choice, "text"));
    if (finish) r->answer->is_cut = strcmp(finish, "length") == 0;
    if (json_is_integer(n) && json_integer_value(n) > 0)
        r->answer->n_tokens = (uint64_t)json_integer_value(n);
    if (error) fail(r, ERR_IO, why ? why : "the server failed");
}

static void take_line(struct reading *r) {
    const char *text = r->line.data ? r->line.data : "";
    json_t *event = NULL;
    if (strncmp(text, "data:", 5) != 0) return;
    text += 5 + strspn(text + 5, " ");
    if (strncmp(text, "[DONE]", 6) == 0) {
        r->is_done = true;
        return;
    }
    if (json_guard_parse(&event, text, strlen(text), "the stream", &r->failure)) return;
    take_event(r, event);
    json_decref(event);
}

static bool take(void *ctx, const char *data, size_t n) {
    struct reading *r = ctx;
    while (n > 0) {
        const char *end = r->status == 200 ? memchr(data, '\n', n) : NULL;
        const size_t length = end ? (size_t)(end - data) : n;
        if (r->line.length + length > MAX_LINE_BYTES)
            fail(r, ERR_IO, "the server sends a line of more than 4 MiB");
        else buffer_append(&r->line, data, length);
        if (r->line.failed) fail(r, ERR_NOMEM, "no memory for the answer");
        if (r->failure.code) return false;
        if (!end) break;
        take_line(r);
        buffer_clear(&r->line);
        data = end + 1;
        n -= length + 1;
    }
    return !r->failure.code;
}

/* Says what the body of a refusal does. */
static int refuse(const struct reading *r, struct error *err) {
    json_t *root = NULL;
    struct error ignored;
    if (!r->line.data || json_guard_parse(&root, r->line.data, r->line.length, "", &ignored))
        return error_set(err, ERR_INVALID, "the server answers with status %u", r->status);
    const char *why = json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    error_set(err, ERR_INVALID, why ? "%.500s" : "the server refuses the request", why ? why : "");
    json_decref(root);
    return ERR_INVALID;
}

static int finish(struct reading *r, int rc, struct error *err) {
    set_thinking(r, false);
    if (r->first_s > 0) {
        r->answer->first_s = r->first_s - r->begun_s;
        r->answer->rest_s = r->last_s - r->first_s;
    }
    if (rc) return rc;
    if (r->failure.code) {
        *err = r->failure;
        return err->code;
    }
    if (r->status != 200) return refuse(r, err);
    return r->is_done ? 0 : error_set(err, ERR_IO, "the answer breaks off");
}

int answer_ask(struct answer *out, struct asked_server *server, const char *path, json_t *body,
               const struct answer_look *look, const volatile sig_atomic_t *stop,
               struct error *err) {
    struct reading r = {.answer = out, .look = look, .begun_s = clock_seconds()};
    *out = (struct answer){0};
    const int status =
        json_object_set_new(body, "stream", json_true()) |
        json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
    struct buffer text = {0};
    buffer_json_value(&text, body);
    int rc = 0;
    if (status || text.failed) rc = error_set(err, ERR_NOMEM, "no memory for the request");
    else rc = asked_server_post(&r.status, server, path, text.data, stop, take, &r, err);
    rc = finish(&r, rc, err);
    if (rc) drop_controls(err->text);
    buffer_fini(&text);
    buffer_fini(&r.line);
    return rc;
}

void answer_fini(struct answer *answer) {
    buffer_fini(&answer->text);
}
