/* fuzz_framing.c - any bytes at all into the scanner of requests, whole and in pieces.
 *
 * The first byte of an input says how to cut the rest.  The verdict must not depend on it: the same
 * requests end at the same places, or the same one is refused with the same words.  Of what is
 * accepted, the head and the chunk lines hold no byte that readers differ about.
 *
 * Thread: the fuzzer's.  Memory: none kept. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/http/framing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BODY = 4096 };

static bool is_space(const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != ' ' && bytes[i] != '\t') return false;
    return true;
}

/* Where the input's first requests ended, how many of their bytes were kept, and how it stood at
 * its end. */
struct verdict {
    size_t n_requests, end, n_kept;
    struct framing last;
};

/* Scans a copy of the bytes, as what is left of it is moved.  What is left ends no value in white
 * space. */
static size_t scan_piece(struct verdict *verdict, const char *bytes, size_t size) {
    char *piece = malloc(size);
    size_t kept;
    if (!piece) abort();
    memcpy(piece, bytes, size);
    const size_t taken = framing_scan(&verdict->last, piece, size, &kept);
    if (taken && kept > taken) abort();
    if (taken == kept && memcmp(piece, bytes, taken) != 0) abort();
    if (taken) verdict->n_kept += kept;
    free(piece);
    return taken;
}

/* Scans pieces of `piece` bytes, as connections do: the rest of a piece waits while a request is
 * answered, and comes again; white space that may end a value comes again with more. */
static void scan(struct verdict *verdict, const char *bytes, size_t size, size_t piece) {
    memset(verdict, 0, sizeof(*verdict));
    framing_init(&verdict->last, MAX_BODY);
    size_t at = 0, again = 0;
    while (at < size) {
        const size_t n = again + piece < size - at ? again + piece : size - at;
        const size_t taken = scan_piece(verdict, bytes + at, n);
        if (verdict->last.state == FRAMING_REFUSED) return;
        again = verdict->last.state == FRAMING_WHOLE ? 0 : n - taken;
        if (!is_space(bytes + at + taken, again) || again > FRAMING_WHITE_SPACE_MAX) abort();
        if (framing_left(&verdict->last) && at + taken < size && taken < n) abort();
        at += taken;
        if (again && at + again == size) return;
        if (verdict->last.state != FRAMING_WHOLE) continue;
        verdict->n_requests++;
        verdict->end = at;
        framing_init(&verdict->last, MAX_BODY);
    }
}

static void check_same(const struct verdict *a, const struct verdict *b) {
    if (a->n_requests != b->n_requests || a->end != b->end || a->last.state != b->last.state)
        abort();
    if (a->last.state != FRAMING_REFUSED && a->n_kept != b->n_kept) abort();
    if (a->last.state != FRAMING_REFUSED) return;
    if (a->last.status != b->last.status || strcmp(a->last.message, b->last.message) != 0) abort();
    if (strcmp(a->last.id, b->last.id) != 0) abort();
}

/* Checks a whole head without a body: every line ends in CR LF, and nothing else is a control
 * byte. */
static void check_head(const char *bytes, size_t size) {
    struct verdict verdict = {0};
    framing_init(&verdict.last, 0);
    const size_t n = scan_piece(&verdict, bytes, size);
    if (verdict.last.state != FRAMING_WHOLE || verdict.last.has_coding) return;
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
