/* extra_tokens.c - the added tokens of tokenizer.json, with what the files beside it say of them
 * (token_names.h).
 *
 * A token that both have keeps the id of tokenizer.json and gets the flags of the other file.  A
 * name or a special token whose text only the vocabulary has becomes a special added token: without
 * that its text in a prompt would be pieces.
 *
 * Thread: the loading one.  Memory: the caller's. */
#include "engine/base/error.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/token_names.h"

struct merging {
    json_t *list, *others, *seen; /* others: content -> entry of the other file; seen: contents */
    const json_t *vocab;
};

static int see(struct merging *m, const char *content, size_t n) {
    return json_object_setn_new_nocheck(m->seen, content, n, json_true());
}

/* Takes an entry of tokenizer.json, or what the other file says of its content. */
static int take_own(struct merging *m, json_t *entry) {
    size_t n;
    const char *content = member_text(entry, "content", &n);
    json_t *other = content ? json_object_getn(m->others, content, n) : NULL;
    if (!content) return json_array_append(m->list, entry); /* refused later, by name */
    if (see(m, content, n)) return ERR_NOMEM;
    if (!other) return json_array_append(m->list, entry);
    if (json_object_set(other, "id", json_object_get(entry, "id"))) return ERR_NOMEM;
    return json_array_append(m->list, other);
}

static int index_others(struct merging *m, json_t *added) {
    size_t i;
    json_t *entry;
    json_array_foreach(added, i, entry) {
        size_t n;
        const char *content = member_text(entry, "content", &n);
        if (json_object_setn_nocheck(m->others, content, n, entry)) return ERR_NOMEM;
    }
    return 0;
}

/* Takes an entry that only the other file has.  The vocabulary's id wins. */
static int take_other(struct merging *m, const char *content, size_t n, json_t *entry) {
    const uint32_t known = vocab_find(m->vocab, content, n);
    if (json_object_getn(m->seen, content, n)) return 0;
    if (known != NO_TOKEN && json_object_set_new(entry, "id", json_integer(known)))
        return ERR_NOMEM;
    return see(m, content, n) || json_array_append(m->list, entry) ? ERR_NOMEM : 0;
}

/* Makes an entry of a special token, if the vocabulary has it and no file an entry. */
static int take_special(struct merging *m, const json_t *text) {
    const char *content = json_string_value(text);
    const size_t n = json_string_length(text);
    const uint32_t known = vocab_find(m->vocab, content, n);
    if (n == 0 || known == NO_TOKEN || json_object_getn(m->seen, content, n)) return 0;
    json_t *entry = json_pack("{s:i, s:O, s:b}", "id", (int)known, "content", text, "special", 1);
    return see(m, content, n) || json_array_append_new(m->list, entry) ? ERR_NOMEM : 0;
}

static int merge(struct merging *m, json_t *own, const struct token_names *names) {
    size_t i, n;
    const char *content;
    json_t *value;
    int rc = index_others(m, names->added);
    for (i = 0; !rc && i < json_array_size(own); i++) rc = take_own(m, json_array_get(own, i));
    json_object_keylen_foreach(m->others, content, n, value) {
        if (!rc) rc = take_other(m, content, n, value);
    }
    json_object_foreach(names->named, content, value) {
        if (!rc) rc = take_special(m, value);
    }
    for (i = 0; !rc && i < json_array_size(names->special); i++)
        rc = take_special(m, json_array_get(names->special, i));
    return rc ? ERR_NOMEM : 0;
}

int extra_tokens_merge(json_t **out, json_t *own, const json_t *vocab,
                       const struct token_names *names) {
    struct merging m = {
        .list = json_array(), .others = json_object(), .seen = json_object(), .vocab = vocab};
    int rc = m.list && m.others && m.seen ? merge(&m, own, names) : ERR_NOMEM;
    json_decref(m.others);
    json_decref(m.seen);
    if (rc) json_decref(m.list);
    else *out = m.list;
    return rc;
}
