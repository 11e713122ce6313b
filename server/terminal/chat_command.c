/* chat_command.c - see chat_command.h. */
#include "server/terminal/chat_command.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/settings/option_table.h"
#include "server/terminal/answer.h"
#include "server/terminal/line_reader.h"
#include "server/terminal/talk.h"

static const char block_mark[] = "\"\"\"";

struct chat {
    const struct talk_plan *plan;
    struct asked_server server;
    struct answer_look look;
    struct line_reader lines;
    volatile sig_atomic_t *stop;
    char *system;     /* NULL: none */
    json_t *messages; /* without the system's */
    bool ends;
};

/* What a line that begins with '/' does.  rest: what follows the name, without spaces in front. */
struct chat_verb {
    const char *name, *help;
    void (*act)(struct chat *chat, const char *rest);
};

static const struct chat_verb *chat_verbs(void);

void chat_print_help(void) {
    puts(
        "usage: quire chat [MODEL] [options of `quire serve`] [options below]\n"
        "\n"
        "Talks with a model.  A line is a message; one that ends with \\ goes on in the next, and\n"
        "\"\"\" begins and ends a message of several lines.  Ctrl-C stops an answer, Ctrl-D ends.\n"
        "Lines can be edited where libedit is installed (Debian: libedit2).  No port is opened.\n");
    for (const struct chat_verb *verb = chat_verbs(); verb->name; verb++)
        printf("  %-14s %s\n", verb->name, verb->help);
    putchar('\n');
    option_table_print(stdout, chat_options());
}

/* ---- messages ---- */

/* Returns a line of the message, or NULL. */
static char *read_line(struct chat *chat, bool is_first) {
    return line_reader_read(&chat->lines, is_first ? ">>> " : "... ");
}

/* Reads on up to the mark that ends a message of several lines. */
static void read_block(struct chat *chat, struct buffer *message, const char *first) {
    char *line = strdup(first);
    for (; line; line = read_line(chat, false)) {
        char *end = strstr(line, block_mark);
        buffer_append(message, line, end ? (size_t)(end - line) : strlen(line));
        if (end) break;
        if (message->length > 0) buffer_puts(message, "\n");
        free(line);
    }
    free(line);
}

/* Reads a message.  Returns false where there is none any more, or Ctrl-C has dropped it. */
static bool read_message(struct chat *chat, struct buffer *message) {
    const size_t n_mark = strlen(block_mark);
    bool goes_on = true;
    for (bool is_first = true; goes_on; is_first = false) {
        char *line = read_line(chat, is_first);
        if (!line) return false;
        const size_t n = strlen(line);
        goes_on = n > 0 && line[n - 1] == '\\';
        if (is_first && strncmp(line, block_mark, n_mark) == 0) {
            goes_on = false;
            read_block(chat, message, line + n_mark);
        } else {
            buffer_append(message, line, n - goes_on);
            if (goes_on) buffer_puts(message, "\n");
        }
        free(line);
    }
    return !*chat->stop;
}

/* Adds a message; returns false without memory, or where it is not UTF-8. */
static bool add(struct chat *chat, const char *role, const struct buffer *text) {
    return json_array_append_new(chat->messages, json_pack("{s:s, s:s#}", "role", role, "content",
                                                           text->data, text->length)) == 0;
}

static void remove_last(struct chat *chat) {
    json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
}

/* Returns the system's message and the others; NULL without memory. */
static json_t *all_messages(const struct chat *chat) {
    json_t *all = json_array();
    if (all && chat->system)
        json_array_append_new(all,
                              json_pack("{s:s, s:s}", "role", "system", "content", chat->system));
    if (all) json_array_extend(all, chat->messages);
    return all;
}

/* ---- answers ---- */

static void print_rates(const struct chat *chat, const struct answer *answer) {
    const struct answer_look *look = &chat->look;
    if (!look->is_terminal) return;
    fputs(look->has_colours ? "\033[2m" : "", look->out);
    if (answer->n_tokens > 0)
        fprintf(look->out, "[%" PRIu64 " tokens, %.1f tokens/s, the first after %.2f s%s]",
                answer->n_tokens,
                answer->rest_s > 0 ? (double)(answer->n_tokens - 1) / answer->rest_s : 0,
                answer->first_s, answer->is_cut ? ", cut off" : "");
    fputs(look->has_colours ? "\033[0m\n" : "\n", look->out);
}

static void report(const struct error *err) {
    fflush(stdout);
    fprintf(stderr, "quire: %s\n", err->text);
}

/* Asks for the answer to the messages, the last of which is new.  One that is refused is taken
 * back. */
static void answer_last(struct chat *chat) {
    struct answer answer = {0};
    struct error err = {0};
    json_t *body = talk_body(chat->plan, &chat->server), *messages = all_messages(chat);
    int rc = body && messages && json_object_set(body, "messages", messages) == 0 ? 0 : ERR_NOMEM;
    if (rc) error_set(&err, rc, "no memory for the request");
    else
        rc = answer_ask(&answer, &chat->server, "/v1/chat/completions", body, &chat->look,
                        chat->stop, &err);
    if (answer.text.length > 0) fputc('\n', chat->look.out);
    if (rc == ERR_STOPPED) fputs("[stopped]\n", chat->look.out);
    else if (rc) report(&err);
    else print_rates(chat, &answer);
    /* A reader of an answer that was stopped may refer to it. */
    if (answer.text.length == 0 || !add(chat, "assistant", &answer.text)) remove_last(chat);
    *chat->stop = 0;
    answer_fini(&answer);
    json_decref(body);
    json_decref(messages);
}

/* ---- what lines that begin with '/' do ---- */

static void reset(struct chat *chat, const char *rest) {
    (void)rest;
    json_array_clear(chat->messages);
    puts("the conversation is empty");
}

/* Tells whether a text can be in a message: it is UTF-8. */
static bool is_text(const char *text) {
    json_t *string = json_string(text);
    const bool is = string;
    json_decref(string);
    return is;
}

static void set_system(struct chat *chat, const char *rest) {
    char *system = *rest && is_text(rest) ? strdup(rest) : NULL;
    if (*rest && !system) {
        puts("the system's message is not UTF-8, or there is no memory for it: it is unchanged");
        return;
    }
    free(chat->system);
    chat->system = system;
    puts(*rest ? "the system's message is set" : "there is no system's message");
}

static void save(struct chat *chat, const char *rest) {
    json_t *messages = all_messages(chat);
    json_t *root = json_pack("{s:o}", "messages", messages);
    if (!*rest) puts("/save FILE: the name is missing");
    else if (!root || json_dump_file(root, rest, JSON_INDENT(1)) != 0)
        printf("%s: %s\n", rest, strerror(errno));
    else printf("%zu messages are in %s\n", json_array_size(messages), rest);
    json_decref(root);
}

static void leave(struct chat *chat, const char *rest) {
    (void)rest;
    chat->ends = true;
}

static void show_help(struct chat *chat, const char *rest) {
    (void)chat, (void)rest;
    for (const struct chat_verb *verb = chat_verbs(); verb->name; verb++)
        printf("  %-14s %s\n", verb->name, verb->help);
}

static const struct chat_verb *chat_verbs(void) {
    static const struct chat_verb verbs[] = {
        {"/reset", "forgets the conversation, but not the system's message", reset},
        {"/system", "TEXT: sets the system's message; without TEXT there is none", set_system},
        {"/save", "FILE: writes the messages as JSON", save},
        {"/exit", "ends, as Ctrl-D does", leave},
        {"/help", "lists these", show_help},
        {0},
    };
    return verbs;
}

/* Does what a line that begins with '/' says.  Returns false where it is a message. */
static bool act(struct chat *chat, const char *line) {
    const size_t n = strcspn(line, " \n");
    const struct chat_verb *verb = chat_verbs();
    /* A path may begin a message: only a word alone is a verb. */
    if (line[0] != '/' || memchr(line + 1, '/', n - 1)) return false;
    while (verb->name && (strlen(verb->name) != n || strncmp(verb->name, line, n) != 0)) verb++;
    if (verb->name) verb->act(chat, line + n + strspn(line + n, " "));
    else printf("there is no %.*s: /help lists what there is\n", (int)(n < 40 ? n : 40), line);
    return true;
}

/* ---- the conversation ---- */

static void take_message(struct chat *chat, const struct buffer *message) {
    if (message->length == 0 || message->failed || act(chat, message->data)) return;
    if (add(chat, "user", message)) answer_last(chat);
    else puts("the message is not UTF-8, or there is no memory for it");
}

static void converse(struct chat *chat) {
    while (!chat->ends) {
        struct buffer message = {0};
        const bool is_whole = read_message(chat, &message), was_stopped = *chat->stop;
        if (is_whole) take_message(chat, &message);
        else if (was_stopped) puts("\nCtrl-D or /exit ends");
        else chat->ends = true;
        if (chat->ends && !is_whole && chat->lines.is_terminal) putchar('\n');
        if (was_stopped) *chat->stop = 0;
        buffer_fini(&message);
    }
}

int chat_command(const struct talk_plan *plan, const struct options *options, const char *model,
                 const struct talk_engine *engine, struct error *err) {
    if (plan->system && !is_text(plan->system))
        return error_set(err, ERR_INVALID, "--system: the text is not UTF-8");
    struct chat chat = {.plan = plan,
                        .server.own.feed = -1,
                        .look = answer_look_of_stdout(false),
                        .stop = talk_take_interrupt(),
                        .messages = json_array()};
    if (plan->system) chat.system = strdup(plan->system);
    if (!chat.messages || (plan->system && !chat.system)) {
        json_decref(chat.messages);
        return error_set(err, ERR_NOMEM, "no memory for a conversation");
    }
    line_reader_open(&chat.lines);
    const int rc = talk_open(&chat.server, plan, options, model, engine, chat.stop, err);
    if (!rc && chat.lines.is_terminal) puts("/help lists what there is besides messages");
    if (!rc) converse(&chat);
    asked_server_fini(&chat.server);
    line_reader_close(&chat.lines);
    json_decref(chat.messages);
    free(chat.system);
    return rc;
}
