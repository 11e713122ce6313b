/* run_command.c - see run_command.h. */
#include "server/terminal/run_command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/settings/option_table.h"
#include "server/terminal/answer.h"
#include "server/terminal/talk.h"

/* The largest input; a body may have as much (--max-body-size). */
enum { MAX_INPUT_BYTES = 64 << 20 };

void run_print_help(void) {
    puts(
        "usage: quire run MODEL \"prompt\" [options of `quire serve`] [options below]\n"
        "\n"
        "Prints the model's answer while it is generated.  What standard input has is put before\n"
        "the prompt, if it is no terminal:\n"
        "\n"
        "  quire run OWNER/NAME \"Name three rivers.\"\n"
        "  quire run ./model.gguf \"What is this about?\" < README.md\n"
        "  quire run --url http://localhost:8000 \"Name three rivers.\"\n"
        "\n"
        "With --url one word is the prompt.  Where standard input has a text, too, give MODEL and\n"
        "the prompt, or neither.\n"
        "\n"
        "No port is opened.  Exit status: 0 answered, 1 failed, 2 called wrongly, 130 stopped by\n"
        "Ctrl-C.\n");
    option_table_print(stdout, run_options());
}

/* Reads all of standard input, which has nothing where the caller has closed it. */
static int read_input(struct buffer *text, struct error *err) {
    char part[1 << 16];
    for (;;) {
        const ssize_t n = read(STDIN_FILENO, part, sizeof(part));
        if (n == 0 || (n < 0 && errno == EBADF)) return 0;
        if (n < 0) return error_set(err, ERR_IO, "standard input: %s", strerror(errno));
        buffer_append(text, part, (size_t)n);
        if (text->failed) return error_set(err, ERR_NOMEM, "no memory for standard input");
        if (text->length > MAX_INPUT_BYTES)
            return error_set(err, ERR_INVALID, "standard input has more than 64 MiB");
    }
}

/* Puts the prompt behind the input, with an empty line between. */
static int join_prompt(struct buffer *text, const char *prompt, struct error *err) {
    if (prompt && text->length > 0)
        buffer_puts(text, text->data[text->length - 1] == '\n' ? "\n" : "\n\n");
    if (prompt) buffer_puts(text, prompt);
    if (text->failed) return error_set(err, ERR_NOMEM, "no memory for the prompt");
    if (text->length > 0) return 0;
    return error_set(err, ERR_INVALID,
                     "there is no prompt: quire run MODEL \"prompt\", or a text on standard input");
}

/* Returns a body for the prompt; NULL: no memory, or it is not UTF-8. */
static json_t *body_of(const struct talk_plan *plan, const struct asked_server *server,
                       const struct buffer *prompt) {
    json_t *body = talk_body(plan, server), *text = json_stringn(prompt->data, prompt->length),
           *messages = json_array();
    int status = body && text && messages ? 0 : -1;
    if (!status && plan->raw) status = json_object_set(body, "prompt", text);
    /* Without a number /v1/completions answers 16 tokens; other servers may refuse this one. */
    if (!status && plan->raw && plan->max_tokens == 0 && !server->is_remote)
        status = json_object_set_new(body, "max_tokens", json_integer(-1));
    if (!status && plan->system)
        status = json_array_append_new(
            messages, json_pack("{s:s, s:s}", "role", "system", "content", plan->system));
    if (!status && !plan->raw)
        status = json_array_append_new(messages,
                                       json_pack("{s:s, s:O}", "role", "user", "content", text)) ||
                 json_object_set(body, "messages", messages);
    json_decref(text);
    json_decref(messages);
    if (!status) return body;
    json_decref(body);
    return NULL;
}

static int ask(const struct talk_plan *plan, struct asked_server *server,
               const struct buffer *prompt, const volatile sig_atomic_t *stop, struct error *err) {
    const struct answer_look look = answer_look_of_stdout(true);
    struct answer answer;
    json_t *body = body_of(plan, server, prompt);
    if (!body) return error_set(err, ERR_INVALID, "the prompt is not UTF-8, or there is no memory");
    const int rc =
        answer_ask(&answer, server, plan->raw ? "/v1/completions" : "/v1/chat/completions", body,
                   &look, stop, err);
    const size_t n = answer.text.length;
    if (n > 0 && answer.text.data[n - 1] != '\n') putchar('\n');
    if (!rc && answer.is_cut)
        fputs("quire: the answer is cut off: --max-tokens, or the context, has an end\n", stderr);
    answer_fini(&answer);
    json_decref(body);
    return rc;
}

int run_command(const struct talk_plan *plan, const struct options *options, const char *model,
                const char *prompt, const struct talk_engine *engine, struct error *err) {
    const volatile sig_atomic_t *stop = talk_take_interrupt();
    struct asked_server server = {.own.feed = -1};
    struct buffer text = {0};
    int rc = isatty(STDIN_FILENO) ? 0 : read_input(&text, err);
    if (!rc && plan->url && prompt && !model && text.length > 0)
        rc = error_set(err, ERR_INVALID,
                       "'%.64s' may be MODEL or a prompt, since standard input has a text, too: "
                       "with --url give both, or neither",
                       prompt);
    if (!rc) rc = join_prompt(&text, prompt, err);
    if (!rc) rc = talk_open(&server, plan, options, model, engine, stop, err);
    if (!rc) rc = ask(plan, &server, &text, stop, err);
    asked_server_fini(&server);
    buffer_fini(&text);
    return rc;
}
