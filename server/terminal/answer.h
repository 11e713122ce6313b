/* answer.h - one answer of a server, printed while it is generated.
 *
 * What a model writes is hostile: on a terminal, characters that control it are left out.
 *
 * Thread: main.  Memory: the text's; answer_fini() frees it. */
#ifndef SERVER_TERMINAL_ANSWER_H
#define SERVER_TERMINAL_ANSWER_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <jansson.h>

#include "server/json/buffer.h"

struct asked_server;
struct error;

/* How answers are printed. */
struct answer_look {
    FILE *out;
    FILE *reasoning;  /* NULL: it is not shown */
    bool is_terminal; /* out, and reasoning: characters that control one are left out */
    bool has_colours; /* reasoning and notes are dimmed */
};

/* Returns the look of standard output: reasoning is shown where that is a terminal, and dimmed
 * unless NO_COLOR is set.  apart: reasoning goes to standard error, if that is a terminal. */
struct answer_look answer_look_of_stdout(bool apart);

struct answer {
    struct buffer text; /* without reasoning */
    uint64_t n_tokens;  /* of text and reasoning; 0: not told */
    double first_s;     /* from the request to the first token */
    double rest_s;      /* from there to the end */
    bool is_cut;        /* by the most tokens that were asked for, or by the context */
};

/* Posts a body to a path that generates, with "stream" set, and prints what comes.  ERR_INVALID:
 * the server refuses it; ERR_IO: it cannot be asked, or the answer breaks off; ERR_STOPPED: *stop
 * did, and the text so far is kept.  The answer is freed by answer_fini() in any case. */
int answer_ask(struct answer *out, struct asked_server *server, const char *path, json_t *body,
               const struct answer_look *look, const volatile sig_atomic_t *stop,
               struct error *err);
void answer_fini(struct answer *answer);

#endif
