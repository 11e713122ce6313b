/* iterate.c - see iterate.h. */
#include "engine/template/iterate.h"

#include "engine/template/chars.h"
#include "engine/template/containers.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

bool value_is_iterable(struct value v) {
    switch (v.type) {
    case V_UNDEFINED:
    case V_STRING:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_RANGE:
    case V_VIEW:
    case V_ITERATOR: return true;
    default: return false;
    }
}

void cursor_init(struct cursor *cursor, struct render *r, struct value v) {
    *cursor = (struct cursor){.source = v};
    if (value_is_iterable(v)) return;
    render_invalid(r, "a value of type %s is not iterable", value_type_name(v));
    cursor->source = value_undefined(NULL);
}

static struct value entry_item(struct render *r, const struct entry *entry, enum view_kind kind,
                               bool trusted) {
    if (kind == VIEW_ITEMS) return list_pair(r, entry->key, entry->value, trusted);
    return kind == VIEW_KEYS ? entry->key : entry->value;
}

struct value iterate_item(struct render *r, struct value v, size_t i) {
    switch (v.type) {
    case V_LIST:
    case V_TUPLE: return v.list->items[i];
    case V_DICT: return v.dict->entries[i].key;
    case V_VIEW: return entry_item(r, &v.view->dict->entries[i], v.view->kind, v.trusted);
    case V_RANGE: return value_int(range_item(v.range, i), v.trusted);
    default: return value_undefined(NULL);
    }
}

static bool next_char(struct cursor *cursor, struct render *r, struct value *out) {
    const struct string *s = cursor->source.string;
    const size_t begin = cursor->at;
    if (begin >= s->n) return false;
    chars_next(s->bytes, s->n, &cursor->at);
    *out = value_string(string_as(r, string_slice(r, s, begin, cursor->at), false));
    return true;
}

bool cursor_next(struct cursor *cursor, struct render *r, struct value *out) {
    const struct value v = cursor->source;
    if (r->rc || !render_step(r, 1) || v.type == V_UNDEFINED) return false;
    if (v.type == V_ITERATOR) return v.iterator->next(r, v.iterator, out) && !r->rc;
    if (v.type == V_STRING) return next_char(cursor, r, out) && !r->rc;
    if (cursor->at >= value_length(r, v)) return false;
    *out = iterate_item(r, v, cursor->at++);
    return !r->rc;
}

struct list *iterate_all(struct render *r, struct value v) {
    struct cursor cursor;
    struct value item;
    const bool has_length = value_is_sequence(v) || v.type == V_DICT || v.type == V_VIEW;
    struct list *all = list_new(r, has_length ? value_length(r, v) : 0);
    cursor_init(&cursor, r, v);
    while (cursor_next(&cursor, r, &item)) list_add(r, all, item);
    return all;
}

struct value iterator_make(struct render *r, iterator_next_fn next, struct value source,
                           void *state) {
    struct iterator *iterator = render_take(r, sizeof(*iterator));
    if (!iterator) return value_undefined(NULL);
    *iterator = (struct iterator){.next = next, .state = state};
    cursor_init(&iterator->source, r, source);
    return (struct value){
        .type = V_ITERATOR, .trusted = value_is_trusted(source), .iterator = iterator};
}

static bool next_reversed(struct render *r, struct iterator *self, struct value *out) {
    if (self->source.at == 0) return false;
    *out = iterate_item(r, self->source.source, --self->source.at);
    return true;
}

struct value iterator_reverse(struct render *r, struct value source) {
    struct value reversed = iterator_make(r, next_reversed, source, NULL);
    if (reversed.type == V_ITERATOR) reversed.iterator->source.at = value_length(r, source);
    return reversed;
}
