/* containers.c - see containers.h. */
#include "engine/template/containers.h"

#include <string.h>

#include "engine/base/error.h"
#include "engine/base/siphash.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

enum { FEW = 8 /* entries are looked at one by one */ };

/* What a failed render takes from here.  They take no items: list_add() and dict_set() look at the
 * failure first. */
static struct list no_list;
static struct dict no_dict;

/* Takes memory for n objects; a product that wraps is more than any arena has. */
static void *take_array(struct render *r, size_t n, size_t size) {
    return render_take(r, n > SIZE_MAX / size ? SIZE_MAX : n * size);
}

struct list *list_new(struct render *r, size_t capacity) {
    struct list *list = render_take(r, sizeof(*list));
    if (!list) return &no_list;
    *list = (struct list){.capacity = capacity};
    if (capacity) list->items = take_array(r, capacity, sizeof(struct value));
    return capacity && !list->items ? &no_list : list;
}

void list_add(struct render *r, struct list *list, struct value item) {
    if (r->rc || !render_step(r, 1)) return;
    if (list->n == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 4;
        void *items = render_grow(r, list->items, list->capacity * sizeof(struct value),
                                  capacity * sizeof(struct value));
        if (!items) return;
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = item;
}

const struct list *list_share(struct render *r, const struct value *items, size_t n) {
    struct list *list = render_take(r, sizeof(*list));
    if (!list) return &no_list;
    *list = (struct list){.n = n, .capacity = n, .items = (struct value *)items};
    return list;
}

struct value list_pair(struct render *r, struct value first, struct value second, bool trusted) {
    struct list *pair = list_new(r, 2);
    list_add(r, pair, first);
    list_add(r, pair, second);
    return value_tuple(pair, trusted);
}

struct dict *dict_new(struct render *r, size_t capacity) {
    struct dict *dict = render_take(r, sizeof(*dict));
    if (!dict) return &no_dict;
    *dict = (struct dict){.capacity = capacity};
    if (capacity) dict->entries = take_array(r, capacity, sizeof(struct entry));
    return capacity && !dict->entries ? &no_dict : dict;
}

bool value_is_hashable(struct value v) {
    if (v.type == V_TUPLE) {
        for (size_t i = 0; i < v.list->n; i++)
            if (!value_is_hashable(v.list->items[i])) return false;
        return true;
    }
    return v.type != V_LIST && v.type != V_DICT && v.type != V_VIEW;
}

static void absorb_bytes(struct siphash *hash, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, n - i < 8 ? n - i : 8);
        siphash_absorb(hash, word);
    }
    siphash_absorb(hash, n);
}

/* Absorbs equal words for equal values: 1, 1.0 and true are the same key. */
static void absorb(struct siphash *hash, struct value v) {
    if (v.type == V_STRING) {
        absorb_bytes(hash, v.string->bytes, v.string->n);
    } else if (v.type == V_TUPLE) {
        for (size_t i = 0; i < v.list->n; i++) absorb(hash, v.list->items[i]);
    } else if (value_is_number(v)) {
        double d = value_to_double(v) + 0.0; /* -0.0 becomes 0.0 */
        uint64_t word;
        memcpy(&word, &d, sizeof(word));
        siphash_absorb(hash, word);
    }
    siphash_absorb(hash, v.type == V_STRING);
}

static size_t first_slot(const struct render *r, const struct dict *dict, struct value key) {
    struct siphash hash;
    siphash_init(&hash, r->hash_key);
    absorb(&hash, key);
    return (size_t)siphash_end(&hash) & (dict->n_index - 1);
}

/* Returns the slot of the key's entry, or the free one where it belongs. */
static size_t find_slot(struct render *r, const struct dict *dict, struct value key) {
    size_t slot = first_slot(r, dict, key);
    while (dict->index[slot] && !value_equals(r, dict->entries[dict->index[slot] - 1].key, key))
        slot = (slot + 1) & (dict->n_index - 1);
    return slot;
}

static struct entry *find(struct render *r, const struct dict *dict, struct value key) {
    if (dict->index) {
        const uint32_t number = dict->index[find_slot(r, dict, key)];
        return number ? &dict->entries[number - 1] : NULL;
    }
    for (size_t i = 0; i < dict->n; i++)
        if (value_equals(r, dict->entries[i].key, key)) return &dict->entries[i];
    return NULL;
}

const struct value *dict_find(struct render *r, const struct dict *dict, struct value key) {
    if (!value_is_hashable(key)) {
        render_invalid(r, "a %s cannot be a key", value_type_name(key));
        return NULL;
    }
    struct entry *entry = find(r, dict, key);
    return entry ? &entry->value : NULL;
}

/* Makes an index at least twice as large as the dict, and enters all keys. */
static bool reindex(struct render *r, struct dict *dict) {
    const size_t n = 2 * dict->capacity;
    dict->n_index = 1;
    while (dict->n_index < n) dict->n_index *= 2;
    dict->index = render_take(r, dict->n_index * sizeof(*dict->index));
    if (!dict->index) return false;
    memset(dict->index, 0, dict->n_index * sizeof(*dict->index));
    for (size_t i = 0; i < dict->n; i++)
        dict->index[find_slot(r, dict, dict->entries[i].key)] = (uint32_t)(i + 1);
    return true;
}

static bool grow(struct render *r, struct dict *dict) {
    const size_t capacity = dict->capacity ? 2 * dict->capacity : 4;
    if (capacity > UINT32_MAX / 8) {
        render_fail(r, ERR_TOO_LONG, "a dict has too many keys");
        return false;
    }
    void *entries = render_grow(r, dict->entries, dict->capacity * sizeof(struct entry),
                                capacity * sizeof(struct entry));
    if (!entries) return false;
    dict->entries = entries;
    dict->capacity = capacity;
    return capacity <= FEW || reindex(r, dict);
}

void dict_set(struct render *r, struct dict *dict, struct value key, struct value value) {
    if (!value_is_hashable(key)) {
        render_invalid(r, "a %s cannot be a key", value_type_name(key));
        return;
    }
    if (r->rc || !render_step(r, 1)) return;
    struct entry *entry = find(r, dict, key);
    if (entry) {
        entry->value = value;
        return;
    }
    if (dict->n == dict->capacity && !grow(r, dict)) return;
    if (dict->capacity > FEW && !dict->index && !reindex(r, dict)) return;
    dict->entries[dict->n++] = (struct entry){key, value};
    if (dict->index) dict->index[find_slot(r, dict, key)] = (uint32_t)dict->n;
}
