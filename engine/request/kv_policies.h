/* kv_policies.h - the table of KV policies: names, JSON members, defaults and limits.
 *
 *   policy          row: name, words for people, the members that requests may set, a struct
 *                   kv_choice with the defaults
 *   member          what its JSON may be, where struct kv_choice has it, when it has a use
 *
 * The API, the settings, /v1/models, metrics and a test of docs/kv-policies.md read the tables and
 * name no policy.  What a choice does follows from its members, above all its mechanism
 * (kv_choice.h); the code never asks which row it came from.  A policy of existing mechanisms is
 * one row more.
 *
 * Thread: any.  Memory: constants. */
#ifndef ENGINE_REQUEST_KV_POLICIES_H
#define ENGINE_REQUEST_KV_POLICIES_H

#include <stddef.h>

#include "engine/request/kv_choice.h"

enum {
    KV_MAX_POLICIES = 16,           /* rows that the table may have */
    KV_POLICY_MAX_TOKENS = 1 << 28, /* of each member: their sum fits 32 bits */
    KV_POLICY_MAX_KERNEL = 63,      /* a token's score is read this many times */
    KV_MAX_WORDS = 4
};

/* What the JSON value of a member may be, and how struct kv_choice holds it. */
enum kv_form {
    KV_FORM_TOKENS, /* a whole number from low to high, a uint32_t */
    KV_FORM_ODD,    /* the same, and odd */
    KV_FORM_AMOUNT, /* a number of tokens; or a fraction of the prompt in (0, 1), for which the
                       choice holds 0 until the prompt is known */
    KV_FORM_SHARE,  /* a number in (0, 1), a float */
    KV_FORM_WORD,   /* one of the words, an enum: the first one has the value `low` */
    KV_FORM_EITHER, /* one of two words, a bool: the first one is true */
    KV_FORM_PLACE   /* true or false, a bool that holds the opposite; the server decides if the
                       request does not */
};

/* In the order in which they are checked and written. */
enum kv_member_id {
    KV_MEMBER_SINK,
    KV_MEMBER_RECENT,
    KV_MEMBER_HEAVY,
    KV_MEMBER_SCORE,
    KV_MEMBER_DECAY,
    KV_MEMBER_WINDOW,
    KV_MEMBER_POOLING,
    KV_MEMBER_KERNEL,
    KV_MEMBER_PROMPT,
    KV_MEMBER_CHUNK,
    KV_MEMBER_POSITIONS,
    KV_MEMBER_SELECTED,
    KV_MEMBER_TAIL,
    KV_MEMBER_SELECTOR,
    KV_MEMBER_OFFLOAD,
    KV_N_MEMBERS
};

/* Where a member has a use: another member has one of some values, or the policy lacks that one. */
struct kv_use {
    enum kv_member_id other;
    uint32_t values;  /* bit v: the value v will do; 0: the member always has a use */
    const char *rule; /* for errors, behind the member's name */
};

struct kv_member {
    const char *name; /* as errors give it; kv_member_key() is its JSON key */
    enum kv_form form;
    size_t offset;      /* in struct kv_choice */
    uint32_t low, high; /* both are allowed; unless it is a number, only `low` has a meaning */
    const char *words[KV_MAX_WORDS]; /* NULL after the last one */
    uint32_t initial; /* its default where it has a use; 0: what the policy's row says */
    struct kv_use use;
    /* Returns what a fraction comes to at least, for these other members.  NULL: 1. */
    uint32_t (*least)(const struct kv_choice *choice);
};

struct kv_policy_row {
    const char *name;
    const char *keeps; /* what a cache keeps under it, as docs/kv-policies.md says it */
    uint32_t members;  /* bit kv_member_id: requests may set it */
    struct kv_choice defaults;
};

extern const struct kv_member kv_members[KV_N_MEMBERS];

/* Returns the number of rows.  struct kv_choice.type is a row's number; row 0 keeps everything. */
unsigned kv_policies_count(void);
const struct kv_policy_row *kv_policies_row(unsigned type);
/* Returns the number of the row with this name, or kv_policies_count() if there is none. */
unsigned kv_policies_find(const char *name, size_t length);
/* Returns a choice of this row with every member at its default. */
struct kv_choice kv_policies_default(unsigned type);

bool kv_policies_has(unsigned type, enum kv_member_id member); /* requests may set it */

const char *kv_member_key(const struct kv_member *member);
/* Returns the value of a member, unless that is a share, as a number. */
uint32_t kv_member_value(const struct kv_member *member, const struct kv_choice *choice);
bool kv_member_has_use(const struct kv_member *member, const struct kv_choice *choice);
/* Sets the members of the choice's policy that have a use, a default of their own and no value. */
void kv_members_complete(struct kv_choice *choice);

/* A rule on two members' values that the choice breaks. */
struct kv_conflict {
    enum kv_member_id member;
    const char *rule; /* behind the member's name */
};

/* Returns the first such rule, or NULL. */
const struct kv_conflict *kv_choice_conflict(const struct kv_choice *choice);

#endif
