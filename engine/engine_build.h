/* engine_build.h - what an engine consists of, and how it is made from its configuration.
 *
 *   files ─► model, tokenizer, grammars ─► host pool ─► workspace ─► pages ─► scheduler
 *
 * The host pool comes before the workspace, because a device may need some of its own memory for
 * it.  The pages come last, because all memory that is left may become pages.
 *
 * Thread: struct engine says which members belong to the engine thread.  Memory: planned at create
 * (memory_plan.h). */
#ifndef ENGINE_ENGINE_BUILD_H
#define ENGINE_ENGINE_BUILD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/admit.h"
#include "engine/base/error.h"
#include "engine/base/mailbox.h"
#include "engine/engine.h"
#include "engine/engine_disk.h"
#include "engine/kv/kv_space.h"
#include "engine/kv/swap.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/stats_board.h"
#include "engine/system_memory.h"
#include "engine/team.h"

struct scheduler;
struct tokenizer;

enum command_kind { COMMAND_SUBMIT, COMMAND_CANCEL, COMMAND_STOP };

struct engine_command {
    struct engine_command *next;
    enum command_kind kind;
    struct sequence *seq; /* SUBMIT */
    uint64_t id;          /* CANCEL */
};

struct engine {
    struct engine_config config;
    struct engine_info info;
    struct tokenizer *tokenizer;
    struct team *team;
    struct team_rank *ranks;     /* of the team: the first stands for all that are alike */
    struct system_memory system; /* when the pools were planned */
    struct kv_swaps swaps;
    struct engine_disk disk;
    struct kv_space space;
    struct sequence_shared shared;
    struct shared_credit guess_credit; /* of shared, if the backend runs ahead */
    struct constraint_credit grammar_credit;
    struct admission admission;

    struct mailbox commands, events;
    bool has_commands, has_events; /* the mailboxes exist: destroy accepts half-built engines */
    atomic_uint_least64_t next_id, n_submitted;
    atomic_uint n_live;          /* submitted, without a final event: bounds the queue */
    _Atomic double step_began_s; /* of clock_seconds(); 0: no step runs */
    atomic_bool healthy, saves;  /* saves: to the tier on disk, at the end */
    struct stats_board stats;
    pthread_mutex_t failure_lock;
    struct error failure; /* under its lock; code 0: none */
    /* [n_places()]: one command for each live request, so that no cancel is lost for lack of
     * memory. */
    struct engine_command *cancels;
    pthread_mutex_t spare_lock;
    struct engine_command *spare; /* list of the unused ones */

    /* The engine thread. */
    pthread_t thread;
    bool started;
    struct scheduler *scheduler;
    bool stalled; /* nothing could be computed: all sequences wait for the disk */
    struct engine_command stop;
};

/* Loads the model, plans and allocates all memory, and makes what the engine thread works with, as
 * e->config says.  The engine's tier on disk has been opened.  After a failure engine_destroy()
 * frees what has been made.  ERR_INVALID, ERR_NOMEM, ERR_DEVICE, or what model_load() returns. */
int engine_build(struct engine *e, struct error *err);

#endif
