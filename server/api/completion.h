/* completion.h - one completion, and the API in which it was asked for.
 *
 * An API reads the body and writes the answers, in a file of its own (openai.c).  completions.c
 * does the rest for all of them: jobs, the engine's requests and events, streams, errors,
 * departures.
 *
 * Thread: loop (but for the job).  Memory: each completion owns everything of its request. */
#ifndef SERVER_API_COMPLETION_H
#define SERVER_API_COMPLETION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/api/choice.h"
#include "server/api/completion_request.h"
#include "server/api/job.h"
#include "server/api/kv_account.h"
#include "server/api/prefill_account.h"
#include "server/json/buffer.h"
#include "server/otlp/trace_context.h"

struct api_key;
struct completion;
struct engine_request;
struct http_exchange;
struct server;

/* The writers append to c->out. */
struct completion_api {
    const char *path;                   /* of its route, for the log */
    const char *id_prefix;              /* of the ids in its answers */
    size_t size;                        /* of the struct that begins with the completion */
    job_step run;                       /* calls completion_run() with the API's reader of bodies */
    void (*fini)(struct completion *c); /* frees what follows the completion; NULL: nothing does */
    api_error_writer write_error;       /* NULL: OpenAI's shape */
    void (*write_answer)(struct completion *c);
    /* Writes the events with which a stream begins, before any token is there; NULL: none. */
    void (*write_begin)(struct completion *c);
    bool begins_with_counts; /* write_begin() tells n_cached, and waits until that is known */
    /* Writes whole events: what the choice has gathered since the last ones.  May write none. */
    void (*write_events)(struct completion *c, struct choice *choice);
    /* Writes an event that tells the progress of the choice's prompt
     * (completion_write_progress()). */
    void (*write_progress)(struct completion *c, const struct choice *choice,
                           const struct engine_event *event);
    void (*write_end)(struct completion *c); /* those behind the last choice's end */
    /* Writes the last events of a stream that fails; NULL: one event, the error. */
    void (*write_failure)(struct completion *c, const struct api_error *err);
    bool streams_too_long; /* a stream whose prompt is too long for the context begins, and fails */
    const char *ping;      /* is sent in a silent stream; NULL: a comment */
    /* Adds a token with its log-probabilities to the choice's lists. */
    choice_token_writer add_logprobs;
    /* Takes note of an event that has been added to the choice; NULL: nothing to note. */
    void (*added)(struct completion *c, struct choice *choice, const struct engine_event *event);
};

enum { REQUEST_ID_MAX = 128 };

struct completion {
    struct job job; /* first: see job.h */
    const struct completion_api *api;
    struct completion *next, **link; /* in server->completions */
    uint32_t tenant, weight;         /* of the client's API key; 0 and 1: it needs none */
    bool accepted;                   /* by the engine */
    bool cancelled;                  /* by a client, in a request of its own */
    bool begun;                      /* write_begin() has been called */
    struct completion_request request;
    struct choice_format format;
    struct engine_request *submission; /* from the job until the engine takes it */
    struct choice *choices;            /* [n_choices], prompts * best_of */
    uint32_t n_choices, n_live;
    char request_id[REQUEST_ID_MAX + 1];
    uint64_t client; /* that may cancel it: see auth_client() */
    int64_t created;
    struct trace_context trace; /* with an exporter; started_unix_ns: for its times */
    uint64_t started_unix_ns;
    unsigned status; /* of the answer that has ended; 0: the client has left */
    uint64_t started_ns, written_ms;
    uint32_t n_prompt, n_cached;    /* tokens */
    uint32_t n_longest;             /* tokens generated for the longest choice that has ended */
    struct kv_account kv;           /* of the sequences that have ended */
    struct prefill_account prefill; /* of the sequences that have ended */
    struct speculation_usage speculation; /* of the sequences that have ended */
    struct buffer head;                   /* what completion_write_head() repeats */
    struct buffer out;
};

/* Reads and checks the job's body: fills c->request, and what the API keeps beside it.  On failure
 * the request holds nothing to free and c->job.err names the cause. */
typedef int (*completion_reader)(struct completion *c);

/* Starts a completion; the handler of an API's route. */
void completion_start(struct server *server, struct http_exchange *exchange,
                      const struct completion_api *api);

/* Reads the job's body, tokenises its prompts and makes the engine's requests.  Thread: pool. */
void completion_run(struct job *job, completion_reader read);

/* Writes what each of OpenAI's objects of the completion begins with, up to "choices":[.  It is
 * made once, as the completion has objects of one name. */
void completion_write_head(struct completion *c, const char *object);

/* Writes ,"prompt_progress":{…}: the prompt's tokens, those found in the cache, those computed or
 * found, and the milliseconds since the request came. */
void completion_write_progress(struct completion *c, const struct engine_event *event);

uint32_t completion_n_generated(const struct completion *c); /* tokens, of all choices */

/* Writes "usage":{…} to c->out.  Cached tokens are counted once for each prompt, with its first
 * choice.  The members kv and prefill are known only when the last sequence has ended.
 * n_reasoning: tokens of reasoning, written unless they are 0. */
void completion_write_usage(struct completion *c, uint32_t n_reasoning);
/* Writes ,"kv":…,"prefill":…,"speculation":… once the last sequence has ended, and nothing
 * before. */
void completion_write_accounts(struct completion *c);
/* Writes what an event of a stream says of usage, with a comma before it: nothing, null, or, as the
 * client wishes, the counts so far. */
void completion_write_interim_usage(struct completion *c, uint32_t n_reasoning);

#endif
