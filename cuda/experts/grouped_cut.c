/* grouped_cut.c - see grouped_cut.h.  Thread: any.  Memory: none. */
#include "cuda/experts/grouped_cut.h"

enum { COLUMNS = 64, OUTPUTS = 16 /* of which n_in and n_out are multiples */ };

/* The average of pairs of an expert up to which each plan is the fastest, measured. */
static const uint32_t most_pairs[N_GROUPED_PLANS] = {
    [GROUPED_16] = 10, [GROUPED_64] = 400, [GROUPED_256] = UINT32_MAX};

static bool find_format(const struct expert_stack *stack, uint32_t *format) {
    if (stack->in_strips) {
        *format = packed_wide_find_format(&stack->format);
        return *format < N_PACKED_WIDE_FORMATS;
    }
    *format = GROUPED_BF16;
    return stack->format.element == ELEMENT_BF16 && stack->format.scale == SCALE_NONE;
}

bool grouped_takes(const struct expert_product *p, uint32_t *format) {
    uint32_t up;
    if (p->finds_order || p->y_f32 || p->order.n_experts > GROUPED_MAX_EXPERTS ||
        p->n_in % COLUMNS != 0 || p->n_out % OUTPUTS != 0)
        return false;
    return find_format(&p->stacks[0], format) &&
           (!p->gated || (find_format(&p->stacks[1], &up) && up == *format));
}

enum grouped_plan grouped_choose_plan(const struct expert_order *order) {
    const uint64_t n_pairs = (uint64_t)order->n_rows * order->n_used;
    uint32_t plan = 0;
    while (n_pairs > (uint64_t)most_pairs[plan] * order->n_experts) plan++;
    return (enum grouped_plan)plan;
}
