/* kv_policies.c - see kv_policies.h. */
#include "engine/request/kv_policies.h"

#include <string.h>

#define PREFIX "kv_policy."
#define AT(member) offsetof(struct kv_choice, member)
#define BIT(value) (1u << (value))

static uint32_t least_recent(const struct kv_choice *choice) {
    return choice->pooling != KV_POOLING_NONE ? choice->window : 1;
}

static uint32_t least_selected(const struct kv_choice *choice) {
    return choice->n_sink;
}

const struct kv_member kv_members[KV_N_MEMBERS] = {
    [KV_MEMBER_SINK] = {.name = PREFIX "sink",
                        .form = KV_FORM_TOKENS,
                        .offset = AT(n_sink),
                        .low = 0,
                        .high = KV_POLICY_MAX_TOKENS},
    [KV_MEMBER_RECENT] = {.name = PREFIX "recent",
                          .form = KV_FORM_AMOUNT,
                          .offset = AT(n_recent),
                          .low = 1,
                          .high = KV_POLICY_MAX_TOKENS,
                          .least = least_recent},
    [KV_MEMBER_HEAVY] = {.name = PREFIX "heavy",
                         .form = KV_FORM_AMOUNT,
                         .offset = AT(n_heavy),
                         .low = 1,
                         .high = KV_POLICY_MAX_TOKENS},
    [KV_MEMBER_SCORE] = {.name = PREFIX "score",
                         .form = KV_FORM_WORD,
                         .offset = AT(score),
                         .low = KV_SCORE_SUM,
                         .words = {"sum", "mean", "decay", "window"}},
    [KV_MEMBER_DECAY] = {.name = PREFIX "decay",
                         .form = KV_FORM_SHARE,
                         .offset = AT(decay),
                         .use = {KV_MEMBER_SCORE, BIT(KV_SCORE_DECAY), "needs the score decay"}},
    [KV_MEMBER_WINDOW] = {.name = PREFIX "window",
                          .form = KV_FORM_TOKENS,
                          .offset = AT(window),
                          .low = 1,
                          .high = KV_POLICY_MAX_TOKENS,
                          .initial = KV_DEFAULT_WINDOW,
                          .use = {KV_MEMBER_SCORE, BIT(KV_SCORE_WINDOW), "needs the score window"}},
    [KV_MEMBER_POOLING] = {.name = PREFIX "pooling",
                           .form = KV_FORM_WORD,
                           .offset = AT(pooling),
                           .low = KV_POOLING_NONE,
                           .words = {"none", "max", "average"},
                           .use = {KV_MEMBER_SCORE, BIT(KV_SCORE_WINDOW),
                                   "needs the score window"}},
    [KV_MEMBER_KERNEL] = {.name = PREFIX "kernel",
                          .form = KV_FORM_ODD,
                          .offset = AT(kernel),
                          .low = 1,
                          .high = KV_POLICY_MAX_KERNEL,
                          .initial = 7,
                          .use = {KV_MEMBER_POOLING, BIT(KV_POOLING_MAX) | BIT(KV_POOLING_AVERAGE),
                                  "needs the pooling max or average"}},
    [KV_MEMBER_PROMPT] = {.name = PREFIX "prompt",
                          .form = KV_FORM_EITHER,
                          .offset = AT(whole),
                          .words = {"whole", "chunks"}},
    [KV_MEMBER_CHUNK] = {.name = PREFIX "chunk",
                         .form = KV_FORM_TOKENS,
                         .offset = AT(chunk),
                         .low = 1,
                         .high = KV_POLICY_MAX_TOKENS,
                         .use = {KV_MEMBER_PROMPT, BIT(false), "is not allowed with prompt whole"}},
    [KV_MEMBER_POSITIONS] = {.name = PREFIX "positions",
                             .form = KV_FORM_EITHER,
                             .offset = AT(cache_positions),
                             .words = {"cache", "text"}},
    [KV_MEMBER_SELECTED] = {.name = PREFIX "selected",
                            .form = KV_FORM_AMOUNT,
                            .offset = AT(n_selected),
                            .low = 1,
                            .high = KV_POLICY_MAX_TOKENS,
                            .least = least_selected},
    [KV_MEMBER_TAIL] = {.name = PREFIX "tail",
                        .form = KV_FORM_TOKENS,
                        .offset = AT(n_tail),
                        .low = 1,
                        .high = KV_POLICY_MAX_TOKENS},
    [KV_MEMBER_SELECTOR] = {.name = PREFIX "selector",
                            .form = KV_FORM_WORD,
                            .offset = AT(selector),
                            .low = KV_SELECTOR_LAST,
                            .words = {"last", "uniform", "exponential", "accumulated"}},
    [KV_MEMBER_OFFLOAD] = {.name = PREFIX "offload",
                           .form = KV_FORM_PLACE,
                           .offset = AT(on_device)},
};

static const struct kv_policy_row rows[] = {
    {.name = "full", .keeps = "everything", .defaults = {.mechanism = KV_WHOLE}},
    {.name = "streaming",
     .keeps = "the first `sink` tokens and the `recent` newest",
     .members = BIT(KV_MEMBER_SINK) | BIT(KV_MEMBER_RECENT) | BIT(KV_MEMBER_PROMPT) |
                BIT(KV_MEMBER_CHUNK) | BIT(KV_MEMBER_POSITIONS),
     .defaults = {.mechanism = KV_BOUNDED,
                  .n_sink = 4,
                  .n_recent = 2044,
                  .chunk = KV_DEFAULT_CHUNK,
                  .cache_positions = true}},
    {.name = "heavy_hitter",
     .keeps = "the same, and of the other tokens the `heavy` ones that received the most attention",
     .members = BIT(KV_MEMBER_SINK) | BIT(KV_MEMBER_RECENT) | BIT(KV_MEMBER_HEAVY) |
                BIT(KV_MEMBER_SCORE) | BIT(KV_MEMBER_DECAY) | BIT(KV_MEMBER_WINDOW) |
                BIT(KV_MEMBER_POOLING) | BIT(KV_MEMBER_KERNEL) | BIT(KV_MEMBER_PROMPT) |
                BIT(KV_MEMBER_CHUNK) | BIT(KV_MEMBER_POSITIONS),
     .defaults = {.mechanism = KV_BOUNDED,
                  .n_sink = 4,
                  .n_recent = 1020,
                  .n_heavy = 1024,
                  .score = KV_SCORE_SUM,
                  .decay = 0.99f,
                  .chunk = KV_DEFAULT_CHUNK}},
    {.name = "offload",
     .keeps = "everything, but most layers look at a part of it: [offload.md](offload.md)",
     .members = BIT(KV_MEMBER_SINK) | BIT(KV_MEMBER_SELECTED) | BIT(KV_MEMBER_TAIL) |
                BIT(KV_MEMBER_SELECTOR) | BIT(KV_MEMBER_OFFLOAD),
     .defaults = {.mechanism = KV_SELECTING, .n_sink = 4, .n_selected = 2048, .n_tail = 512}},
};

enum { N_ROWS = sizeof(rows) / sizeof(*rows) };
_Static_assert(sizeof(rows) / sizeof(*rows) <= KV_MAX_POLICIES,
               "KV_MAX_POLICIES has room for the table");
_Static_assert(sizeof(enum kv_score) == sizeof(uint32_t), "words are read as 32 bits");
_Static_assert(sizeof(enum kv_pooling) == sizeof(uint32_t), "words are read as 32 bits");
_Static_assert(sizeof(enum kv_selector) == sizeof(uint32_t), "words are read as 32 bits");

unsigned kv_policies_count(void) {
    return N_ROWS;
}

const struct kv_policy_row *kv_policies_row(unsigned type) {
    return &rows[type];
}

unsigned kv_policies_find(const char *name, size_t length) {
    unsigned i = 0;
    while (i < N_ROWS && (strlen(rows[i].name) != length || memcmp(rows[i].name, name, length)))
        i++;
    return i;
}

struct kv_choice kv_policies_default(unsigned type) {
    struct kv_choice choice = rows[type].defaults;
    choice.type = (uint8_t)type;
    kv_members_complete(&choice);
    return choice;
}

bool kv_policies_has(unsigned type, enum kv_member_id member) {
    return rows[type].members & BIT(member);
}

const char *kv_member_key(const struct kv_member *member) {
    return member->name + strlen(PREFIX);
}

uint32_t kv_member_value(const struct kv_member *member, const struct kv_choice *choice) {
    const void *at = (const char *)choice + member->offset;
    if (member->form == KV_FORM_EITHER || member->form == KV_FORM_PLACE) return *(const bool *)at;
    return *(const uint32_t *)at;
}

bool kv_member_has_use(const struct kv_member *member, const struct kv_choice *choice) {
    const struct kv_use *use = &member->use;
    if (!use->values || !kv_policies_has(choice->type, use->other)) return true;
    return use->values & BIT(kv_member_value(&kv_members[use->other], choice));
}

void kv_members_complete(struct kv_choice *choice) {
    for (unsigned i = 0; i < KV_N_MEMBERS; i++) {
        const struct kv_member *member = &kv_members[i];
        if (!member->initial || !kv_policies_has(choice->type, i)) continue;
        if (!kv_member_has_use(member, choice) || kv_member_value(member, choice)) continue;
        *(uint32_t *)((char *)choice + member->offset) = member->initial;
    }
}

const struct kv_conflict *kv_choice_conflict(const struct kv_choice *choice) {
    static const struct kv_conflict pooled_chunks = {KV_MEMBER_POOLING, "needs prompt whole"},
                                    unselected_sinks = {KV_MEMBER_SINK,
                                                        "must not be more than selected"};
    if (choice->pooling != KV_POOLING_NONE && !choice->whole) return &pooled_chunks;
    if (kv_choice_selects(choice) && choice->n_sink > choice->n_selected) return &unselected_sinks;
    return NULL;
}
