/* scheduler_fixture.h - a scheduler with a fake model, for its tests.
 *
 * The fake writes every row's token into its slot of every layer's page, and "predicts" a hash of
 * all the tokens that a row can see, read back through the step's views.  So a page that is handed
 * out twice, shared wrongly or filled with gaps changes what is generated, and every output is
 * compared with what the request gives alone.
 *
 * Draws depend on the row's number and on what the penalties count, so that a row described too
 * early or for the wrong token is noticed.
 *
 * Where `run_ahead` is set, the next step is planned before the results of one are there.  Until a
 * step is landed its results are garbage, and its pages must not be let go.
 *
 * A request with a bounded cache keeps the first tokens and the newest, as the fake's device sees
 * to; its pages say which token is where, and nothing else does.
 *
 * Sequences that select do so in layer 1, by what layer 0 saw (fake_select.h); what they predict is
 * still a hash of everything.
 *
 * In a batch-invariant space the fake's two kernels also leave different marks: a prompt's token
 * that was computed by the kernel for generated ones, or the other way round, changes the output,
 * too.
 *
 * Of sparse prompts the fake checks that slices and pieces come as step.h and decoder.h want
 * them, and that no row sees a token that was computed under another choice; what they predict is
 * the same.  A sparse step visits half of what is causal.
 *
 * Any failure fails the calling cmocka test.
 *
 * Thread: the test's.  Memory: a fixture's is its own, until fixture_fini(). */
#ifndef TESTS_ENGINE_SCHEDULER_FIXTURE_H
#define TESTS_ENGINE_SCHEDULER_FIXTURE_H

#include "engine/device/host_pool.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/engine.h"
#include "engine/kv/kv_sequence.h"
#include "engine/request/event.h"
#include "engine/schedule/batch.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/sequence.h"

struct evict_total;
struct sample_result;
struct select_total;

enum { N_LAYERS = 2, MAX_PAGES = 400, POISON = 999, DECODED = 1 << 20, MAX_TEXT = 1200 };
enum { N_RECENT_TOKENS = 1 << 12 }; /* so few that random loads overwrite them */

extern bool run_ahead; /* which of the two runs this is */
extern bool repeats;   /* most of what is drawn goes on with the alphabet, and can be guessed */
extern double clock_s; /* the scheduler's */

struct page {
    uint32_t cells[PAGE_TOKENS];
    uint32_t choices[PAGE_TOKENS];   /* that the token was computed under; 0: dense */
    uint32_t positions[PAGE_TOKENS]; /* of bounded caches, as is: */
    uint32_t free_slot;              /* in the first page */
};

/* A step on its way: what it will hand out, and the pages it was given. */
struct inflight_step {
    struct batch *batch;
    struct sample_result *results; /* [batch->n_samples] */
    struct evict_total *totals;    /* [batch->step.n_seqs] */
    struct select_total *selected; /* [batch->step.n_seqs] */
    struct sparse_totals visited;
    struct page_list pages, blocks;
};

struct fixture {
    struct kv_space space;
    struct layer_group group; /* layer 0 chooses for all others */
    struct sequence_shared shared;
    struct shared_credit guess_credit; /* where the next step is planned ahead */
    struct scheduler *scheduler;
    struct event_list events;
    struct page *memory; /* [n_pages] */
    struct kv_pool pool; /* the same, as sequences see it */
    struct host_pool store;
    struct kv_swaps swaps;
    uint32_t n_pages, max_rows, max_seqs;
    uint64_t rows_run, sampled_rows_run;
    struct inflight_step inflight[MAX_INFLIGHT]; /* [n_inflight], the oldest first */
    uint32_t n_inflight;
    uint32_t *sampled;               /* by the newest step, by sample row */
    const struct sequence *long_seq; /* of the newest slice, */
    struct layer_slice next_slice;   /* and what its next one must be, but for n_rows */
    uint64_t n_slices, n_chunks;     /* these are sparse */
};

/* The operations that a suspended sequence needs. */
extern struct device {
    uint32_t n_downloads, n_uploads, n_stored, n_reloaded; /* pages */
    bool fails;
} device;

void fixture_init(struct fixture *f, uint32_t n_pages, uint32_t max_rows, uint32_t max_seqs);
/* The same with more settings; space and now_s are the fixture's. */
void fixture_init_with(struct fixture *f, uint32_t n_pages, struct scheduler_config config);
/* n_layers in place of N_LAYERS; before fixture_add_store(). */
void fixture_set_layers(struct fixture *f, uint32_t n_layers);
/* Memory for pages that leave; before the first request. */
void fixture_add_store(struct fixture *f, uint32_t n_blocks);
void fixture_fini(struct fixture *f); /* nothing may have leaked */

uint32_t fixture_mix(uint32_t hash, uint32_t token);

/* What one request should give, worked out from the definition. */
struct expectation {
    char text[MAX_TEXT];
    uint32_t n_generated, n_resident, n_evicted, n_stored;
    enum finish_reason reason;
};

/* A request as the test sees it; events find it through `user`. */
struct client {
    struct expectation expected;
    char text[MAX_TEXT];
    bool bounded, submitted, cancelled, finished;
    struct engine_event last; /* the final event's numbers */
    uint32_t n_prompt_infos, n_wanted_infos, step_of_last_event;
    float first_score;
};

struct engine_request client_request(struct client *c, uint32_t n_prompt, uint32_t max_tokens);
/* Prompts share prefixes of several blocks now and then. */
void client_fill_prompt(struct engine_request *r);
void client_check(const struct client *c); /* it has what it gives alone */

void fixture_submit(struct fixture *f, struct engine_request *r, uint64_t id);
/* Asserts that the space cannot hold the request, and frees it. */
void fixture_refuse(struct fixture *f, struct engine_request *r);
/* Runs a batch of the scheduler's plan, and lands the oldest one. */
void fixture_submit_step(struct fixture *f, struct batch *batch);
void fixture_complete_step(struct fixture *f);
/* Takes the events; step_number, if not 0: each client gets one event a step. */
void fixture_drain(struct fixture *f, uint32_t step_number);
/* Plans and lands; false when there is nothing left to do. */
bool fixture_step(struct fixture *f, uint32_t number);
void fixture_run(struct fixture *f);
/* One time in `patience`: draws one of n clients, client i under the id i + 1, and cancels it if it
 * has been submitted and has not finished. */
void fixture_cancel_one(struct fixture *f, struct client *clients, uint32_t n, int patience);

/* Runs the program's tests in both runs; returns how many failed. */
int fixture_main(void);

#endif
