/* fuzz_framing.c - any bytes at all into the scanner of requests, whole and in pieces.
 *
 * The first byte of an input says how to cut the rest.  The verdict must not depend on it: the same
 * requests end at the same places, or the same one is refused with the same words.  Of what is
 * accepted, the head and the chunk lines hold no byte that readers differ about.
 *
 * Thread: the fuzzer's.  Memory: none kept. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/http/framing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BODY = 4096 };

/* Where the input's first requests ended, and how it stood at its end. */
struct verdict {
    size_t n_requests, end;
    struct framing last;
};

/* Scans pieces of `piece` bytes, as connections do: the rest of a piece waits while a request is
 * answered, and comes again. */
static void scan(struct verdict *verdict, const char *bytes, size_t size, size_t piece) {
    memset(verdict, 0, sizeof(*verdict));
    framing_init(&verdict->last, MAX_BODY);
    size_t at = 0;
    while (at < size) {
        const size_t n = piece < size - at ? piece : size - at;
        const size_t taken = framing_scan(&verdict->last, bytes + at, n);
        if (verdict->last.state == FRAMING_REFUSED) return;
        if (taken < n && verdict->last.state != FRAMING_WHOLE) abort();
        if (framing_left(&verdict->last) && at + taken < size && taken < n) abort();
        at += taken;
        if (verdict->last.state != FRAMING_WHOLE) continue;
        verdict->n_requests++;
        verdict->end = at;
        framing_init(&verdict->last, MAX_BODY);
    }
}

static void check_same(const struct verdict *a, const struct verdict *b) {
    if (a->n_requests != b->n_requests || a->end != b->end || a->last.state != b->last.state)
        abort();
    if (a->last.state != FRAMING_REFUSED) return;
    if (a->last.status != b->last.status || strcmp(a->last.message, b->last.message) != 0) abort();
    if (strcmp(a->last.id, b->last.id) != 0) abort();
}

/* A whole head without a body: every line ends in CR LF, and nothing else is a control byte. */
static void check_head(const char *bytes, size_t size) {
    struct framing framing;
    framing_init(&framing, 0);
    const size_t n = framing_scan(&framing, bytes, size);
    if (framing.state != FRAMING_WHOLE || framing.has_coding) return;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c == '\r' && (i + 1 == n || bytes[i + 1] != '\n')) abort();
        if (c == '\n' && (i == 0 || bytes[i - 1] != '\r')) abort();
        if (c < 0x20 && c != '\r' && c != '\n' && c != '\t') abort();
        if (c == '\n' && i + 1 < n && (bytes[i + 1] == ' ' || bytes[i + 1] == '\t')) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct verdict whole, pieces, bytes;
    if (size < 1) return 0;
    const size_t piece = 1u + data[0];
    const char *text = (const char *)data + 1;
    scan(&whole, text, size - 1, size);
    scan(&pieces, text, size - 1, piece);
    scan(&bytes, text, size - 1, 1);
    check_same(&whole, &pieces);
    check_same(&whole, &bytes);
    check_head(text, size - 1);
    return 0;
}
