/* group.c - see group.h.
 *
 * In a collective operation each rank copies its operand to where the others read it, and then the
 * ranks meet.  There are two such copies, in turn.  So a rank writes one only after all ranks have
 * come to the meeting behind the one at which they began to read it. */
#include "engine/cpu/group.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/base/meeting.h"
#include "engine/base/sizes.h"
#include "engine/cpu/backend.h"
#include "engine/cpu/buffer.h"
#include "engine/cpu/threads.h"
#include "engine/device/collective.h"
#include "engine/device/exchange.h"

enum { TASK_ELEMENTS = 1 << 14 };

/* An operand of a rank, as the others read it. */
struct operand {
    struct cpu_buffer copy;             /* f32 */
    struct gather_columns_args columns; /* of gather_columns(): what the copy has of x */
};

struct cpu_group {
    uint32_t n;
    struct backend *ranks[RANKS_MAX];
    struct operand operands[RANKS_MAX][2];
    uint32_t n_sharing;          /* ranks that have the same KV head */
    uint32_t n_calls[RANKS_MAX]; /* of each rank, since the ranks last began: its newest operand */
    struct meeting meeting;
};

/* Returns the newest operand of a rank, as the caller's rank counts. */
static struct operand *operand_of(const struct cpu_backend *cpu, uint32_t rank) {
    struct cpu_group *group = cpu->group;
    return &group->operands[rank][group->n_calls[cpu->base.rank] % 2];
}

static const float *copy_of(const struct cpu_backend *cpu, uint32_t rank) {
    return operand_of(cpu, rank)->copy.data;
}

/* Begins an operation: makes space for n elements of the rank's operand. */
static int begin(struct cpu_backend *cpu, size_t n, struct error *err) {
    cpu->group->n_calls[cpu->base.rank]++;
    return cpu_buffer_reserve(&operand_of(cpu, cpu->base.rank)->copy, n * sizeof(float), err);
}

/* Waits until all ranks have come to the same operation. */
static int attend(struct cpu_backend *cpu, struct error *err) {
    const double start = clock_seconds();
    const int rc = meeting_attend(&cpu->group->meeting, err);
    atomic_store(&cpu->waited_s, atomic_load(&cpu->waited_s) + (clock_seconds() - start));
    return rc;
}

struct copying {
    float *to;
    const float *from;
    size_t n;
};

static void copy_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct copying *c = ctx;
    const size_t first = (size_t)task * TASK_ELEMENTS, end = min_u64(first + TASK_ELEMENTS, c->n);
    memcpy(c->to + first, c->from + first, (end - first) * sizeof(float));
}

/* Shows the other ranks an operand, and waits until all have shown one. */
static int show(struct cpu_backend *cpu, const float *operand, size_t n, struct error *err) {
    const int rc = begin(cpu, n, err);
    if (rc) return rc;
    struct copying copying = {operand_of(cpu, cpu->base.rank)->copy.data, operand, n};
    pool_run(cpu->pool, copy_task, &copying, (uint32_t)div_up(n, TASK_ELEMENTS));
    return attend(cpu, err);
}

/* ---- sums and maximums ---- */

struct reduction {
    const struct cpu_backend *cpu;
    float *out;
    size_t n;
    bool accumulate;
};

static void sum_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct reduction *r = ctx;
    const size_t first = (size_t)task * TASK_ELEMENTS, end = min_u64(first + TASK_ELEMENTS, r->n);
    float sums[256];
    for (size_t at = first; at < end; at += COUNT(sums)) {
        const size_t n = min_u64(COUNT(sums), end - at);
        memcpy(sums, copy_of(r->cpu, 0) + at, n * sizeof(*sums));
        for (uint32_t rank = 1; rank < r->cpu->group->n; rank++) {
            const float *part = copy_of(r->cpu, rank) + at;
            for (size_t i = 0; i < n; i++) sums[i] += part[i];
        }
        for (size_t i = 0; i < n; i++)
            r->out[at + i] = sums[i] + (r->accumulate ? r->out[at + i] : 0);
    }
}

static int sum(struct backend *be, const struct sum_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    struct reduction r = {.cpu = cpu, .out = args->x, .n = args->n, .accumulate = args->accumulate};
    const int rc = show(cpu, args->part, args->n, err);
    if (!rc) pool_run(cpu->pool, sum_task, &r, (uint32_t)div_up(args->n, TASK_ELEMENTS));
    return rc;
}

int cpu_group_sum(struct cpu_backend *cpu, float *x, size_t n, struct error *err) {
    const struct sum_args args = {.part = x, .x = x, .n = n};
    return sum(&cpu->base, &args, err);
}

static void largest_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct reduction *r = ctx;
    const size_t first = (size_t)task * TASK_ELEMENTS, end = min_u64(first + TASK_ELEMENTS, r->n);
    for (uint32_t rank = 0; rank < r->cpu->group->n; rank++) {
        const float *other = copy_of(r->cpu, rank);
        for (size_t i = first; i < end; i++)
            r->out[i] = other[i] > r->out[i] ? other[i] : r->out[i];
    }
}

int cpu_group_largest(struct cpu_backend *cpu, float *x, size_t n, struct error *err) {
    struct reduction r = {.cpu = cpu, .out = x, .n = n};
    if (!cpu->group) return 0;
    const int rc = show(cpu, x, n, err);
    if (!rc) pool_run(cpu->pool, largest_task, &r, (uint32_t)div_up(n, TASK_ELEMENTS));
    return rc;
}

static void mean_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct reduction *r = ctx;
    const uint32_t n = r->cpu->group->n_sharing, head = r->cpu->base.rank / n;
    const size_t first = (size_t)task * TASK_ELEMENTS, end = min_u64(first + TASK_ELEMENTS, r->n);
    for (size_t i = first; i < end; i++) {
        float sum = 0;
        for (uint32_t rank = head * n; rank < (head + 1) * n; rank++)
            sum += copy_of(r->cpu, rank)[i];
        r->out[i] = sum / (float)n;
    }
}

bool cpu_group_shares_heads(const struct cpu_backend *cpu) {
    return cpu->group && cpu->group->n_sharing > 1;
}

int cpu_group_mean_of_head(struct cpu_backend *cpu, float *x, size_t n, struct error *err) {
    struct reduction r = {.cpu = cpu, .out = x, .n = n};
    const int rc = show(cpu, x, n, err);
    if (!rc) pool_run(cpu->pool, mean_task, &r, (uint32_t)div_up(n, TASK_ELEMENTS));
    return rc;
}

/* ---- columns ---- */

/* Copies the rank's columns of x, one row behind the other. */
static void pack_columns(const struct gather_columns_args *from, struct operand *to) {
    float *out = to->copy.data;
    to->columns = *from;
    for (uint32_t row = 0; row < from->n_rows; row++, out += from->n_cols)
        memcpy(out, from->x + (size_t)row * from->width + from->first,
               from->n_cols * sizeof(float));
}

static void take_columns(const struct operand *from, const struct gather_columns_args *to) {
    const struct gather_columns_args *c = &from->columns;
    const float *in = from->copy.data;
    for (uint32_t row = 0; row < to->n_rows; row++, in += c->n_cols)
        memcpy(to->x + (size_t)row * to->width + c->first, in, c->n_cols * sizeof(float));
}

static int gather_columns(struct backend *be, const struct gather_columns_args *args,
                          struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    const bool takes = be->rank == 0;
    int rc = begin(cpu, takes ? 0 : (size_t)args->n_rows * args->n_cols, err);
    if (!rc && !takes) pack_columns(args, operand_of(cpu, be->rank));
    if (!rc) rc = attend(cpu, err);
    for (uint32_t rank = 1; rank < cpu->group->n && takes && !rc; rank++)
        take_columns(operand_of(cpu, rank), args);
    return rc;
}

/* ---- rows for columns ---- */

/* What a rank takes from another one, or from itself. */
struct taking {
    const struct exchange_args *args;
    const float *from;
    struct exchange_block rows;
    uint32_t sender, receiver;
    uint32_t task_rows;
};

static void take_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct taking *t = ctx;
    const struct exchange_args *args = t->args;
    const uint32_t first = task * t->task_rows, end = min_u32(first + t->task_rows, t->rows.n_rows);
    for (uint32_t row = first; row < end; row++) {
        const float *from = t->from + (t->rows.from_row + row) * args->from_stride;
        float *to = (float *)args->to + (t->rows.to_row + row) * args->to_stride;
        for (uint32_t i = 0; i < args->n_parts; i++) {
            const struct exchange_part *part = &args->parts[i];
            memmove(to + exchange_to(args, part, t->sender),
                    from + exchange_from(args, part, t->receiver), part->n * sizeof(float));
        }
    }
}

static void take_rows(struct cpu_backend *cpu, const struct exchange_args *args, const float *from,
                      uint32_t sender) {
    struct taking t = {.args = args,
                       .from = from,
                       .rows = exchange_block_of(args, sender, cpu->base.rank, cpu->group->n),
                       .sender = sender,
                       .receiver = cpu->base.rank};
    t.task_rows = (uint32_t)max_u64(TASK_ELEMENTS / args->to_stride, 1);
    pool_run(cpu->pool, take_task, &t, (uint32_t)div_up(t.rows.n_rows, t.task_rows));
}

static int exchange(struct backend *be, const struct exchange_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    const uint32_t n = cpu->group->n, n_rows = args->from_own_rows
                                                   ? rank_rows_of(args->n_rows, be->rank, n).n
                                                   : args->n_rows;
    const bool is_alone = exchange_is_alone(args);
    const int rc = is_alone ? 0 : show(cpu, args->from, n_rows * args->from_stride, err);
    if (!rc) take_rows(cpu, args, args->from, be->rank);
    for (uint32_t i = 0; i < n && !rc && !is_alone; i++)
        if (i != be->rank) take_rows(cpu, args, copy_of(cpu, i), i);
    return rc;
}

static double waited_s(const struct backend *be) {
    return atomic_load(&((const struct cpu_backend *)be)->waited_s);
}

static void share_heads(struct backend *be, uint32_t n_kv_heads) {
    struct cpu_group *group = ((struct cpu_backend *)be)->group;
    group->n_sharing = n_kv_heads < group->n ? group->n / n_kv_heads : 1;
}

static void interrupt(struct backend *be) {
    meeting_interrupt(&((struct cpu_backend *)be)->group->meeting);
}

static void resume(struct backend *be) {
    struct cpu_group *group = ((struct cpu_backend *)be)->group;
    memset(group->n_calls, 0, sizeof(group->n_calls));
    meeting_resume(&group->meeting);
}

const struct collective_ops cpu_collective_ops = {.sum = sum,
                                                  .gather_columns = gather_columns,
                                                  .rmsnorm = cpu_rmsnorm_parts,
                                                  .exchange = exchange,
                                                  .waited_s = waited_s,
                                                  .share_heads = share_heads,
                                                  .interrupt = interrupt,
                                                  .resume = resume,
                                                  .selects = true};

/* ---- the group ---- */

int cpu_group_create(struct cpu_group **out, struct backend *const *ranks, uint32_t n_ranks,
                     struct error *err) {
    struct cpu_group *group = calloc(1, sizeof(*group));
    if (!group) return error_set(err, ERR_NOMEM, "cpu: no memory for %u ranks", n_ranks);
    group->n = n_ranks;
    meeting_init(&group->meeting, n_ranks);
    memcpy(group->ranks, ranks, n_ranks * sizeof(*ranks));
    for (uint32_t i = 0; i < n_ranks; i++) {
        ((struct cpu_backend *)ranks[i])->group = group;
        ranks[i]->ranks = group->ranks;
        ranks[i]->n_ranks = n_ranks;
        ranks[i]->rank = i;
    }
    *out = group;
    return 0;
}

void cpu_group_destroy(struct cpu_group *group) {
    if (!group) return;
    for (uint32_t i = 1; i < group->n; i++) group->ranks[i]->ops->destroy(group->ranks[i]);
    for (uint32_t i = 0; i < group->n; i++)
        for (int k = 0; k < 2; k++) buffer_free(&group->operands[i][k].copy);
    meeting_fini(&group->meeting);
    free(group);
}
