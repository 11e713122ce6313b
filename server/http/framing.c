/* framing.c - see framing.h. */
#include "server/http/framing.h"

#include <string.h>
#include <strings.h>

enum {
    METHOD_MAX = 32,
    LENGTH_DIGITS = 18, /* fit into 64 bits */
    CHUNK_DIGITS = 15,
    BLANK_LINES = 2, /* some clients send an extra empty line after a body */
};

void framing_init(struct framing *framing, uint64_t max_body) {
    memset(framing, 0, sizeof(*framing));
    framing->max_body = max_body;
}

uint64_t framing_left(const struct framing *framing) {
    return framing->state == FRAMING_BODY ? framing->left : 0;
}

bool framing_unfinished(const struct framing *framing) {
    return framing->state > FRAMING_START && framing->state < FRAMING_WHOLE;
}

void framing_refuse(struct framing *f, unsigned status, const char *message) {
    f->state = FRAMING_REFUSED;
    f->status = status;
    f->message = message;
}

static void malformed(struct framing *f, const char *message) {
    framing_refuse(f, 400, message);
}

static bool is_token(unsigned char c) {
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
    return c && strchr("!#$%&'*+-.^_`|~", c);
}

/* Returns whether a byte may stand in a field's value or a chunk's extension. */
static bool is_text(unsigned char c) {
    return c == '\t' || (c >= 0x20 && c != 0x7F);
}

/* ---- the request line ---- */

static void at_start(struct framing *f, unsigned char c) {
    if (c == '\r' && f->n_blank < BLANK_LINES) {
        f->state = FRAMING_START_LF;
        f->n_blank++;
    } else if (is_token(c)) {
        f->state = FRAMING_METHOD;
        f->n_line = 1;
    } else {
        malformed(f, "the request line is not valid");
    }
}

static void in_method(struct framing *f, unsigned char c) {
    if (c == ' ') {
        f->state = FRAMING_TARGET;
    } else if (!is_token(c) || ++f->n_line > METHOD_MAX) {
        malformed(f, "the request line is not valid");
    }
}

/* Refuses "%00" in the target: decoded to a NUL, it would end the path early for readers of C
 * strings. */
static void watch_percent(struct framing *f, unsigned char c) {
    f->n_percent = c == '%' ? 1 : f->n_percent && c == '0' ? f->n_percent + 1 : 0;
    if (f->n_percent == 3) malformed(f, "the request target is not valid");
}

static void in_target(struct framing *f, unsigned char c) {
    if (c == ' ' && f->n_target) {
        f->state = FRAMING_VERSION;
        f->n_line = 0;
        return;
    }
    if (c <= 0x20 || c == 0x7F) {
        malformed(f, "the request line is not valid");
        return;
    }
    if (++f->n_target > FRAMING_TARGET_MAX) {
        framing_refuse(f, 414, "the request target is too long");
        return;
    }
    watch_percent(f, c);
    if (c == '?' ? !f->query : f->query && c == '&') f->n_arguments++;
    f->query = f->query || c == '?';
    if (f->n_arguments > FRAMING_MAX_ARGUMENTS)
        framing_refuse(f, 414, "the request has too many query arguments");
}

/* Scans the version: HTTP/1 with any minor version, of which only 1.0 differs. */
static void in_version(struct framing *f, unsigned char c) {
    static const char form[] = "HTTP/d.d\r";
    const char expected = form[f->n_line++];
    if (expected == 'd' ? c < '0' || c > '9' : c != (unsigned char)expected) {
        malformed(f, "the request line is not valid");
        return;
    }
    if (f->n_line == 6) f->major = (char)c;
    if (f->n_line == 8) f->http_1_0 = c == '0';
    if (c != '\r') return;
    f->state = FRAMING_LINE_LF;
    if (f->major != '1') framing_refuse(f, 505, "this version of HTTP is not supported");
}

/* ---- fields, of the head and of the trailer ---- */

static bool is_named(const struct framing *f, const char *name) {
    return strcasecmp(f->name, name) == 0;
}

static void at_field_start(struct framing *f, unsigned char c) {
    if (c == '\r') {
        f->state = FRAMING_END_LF;
        return;
    }
    if (c == ' ' || c == '\t') {
        malformed(f, "a header must not be folded over several lines");
        return;
    }
    if (!is_token(c)) {
        malformed(f, "a header name is not valid");
        return;
    }
    if (f->trailer) f->n_trailer_fields++;
    else f->n_fields++;
    if (f->n_fields + f->n_trailer_fields > FRAMING_MAX_FIELDS) {
        framing_refuse(f, 431, "the request has too many headers");
        return;
    }
    f->state = FRAMING_NAME;
    f->name[0] = (char)c;
    f->n_name = 1;
}

static void in_name(struct framing *f, unsigned char c) {
    if (c != ':') {
        if (!is_token(c)) malformed(f, "a header name is not valid");
        else if (f->n_name < sizeof(f->name)) f->name[f->n_name] = (char)c;
        f->n_name++;
        return;
    }
    /* A name too long for the buffer is none of those that matter here. */
    f->name[f->n_name < sizeof(f->name) ? f->n_name : 0] = '\0';
    f->n_value = 0;
    f->is_cookie = is_named(f, "cookie");
    f->cookie_value = f->cookie_quoted = false;
    if (f->is_cookie) f->n_cookies++;
    f->state = FRAMING_VALUE_START;
}

static bool is_number(const char *text) {
    const size_t n = strspn(text, "0123456789");
    return n > 0 && n <= LENGTH_DIGITS && !text[n];
}

/* Returns whether a Content-Encoding leaves a body as it is. */
static bool is_identity(const char *value) {
    static const char identity[] = "identity";
    for (;;) {
        value += strspn(value, ", \t");
        if (!*value) return true;
        if (strcspn(value, ", \t") != sizeof(identity) - 1 ||
            strncasecmp(value, identity, sizeof(identity) - 1) != 0)
            return false;
        value += sizeof(identity) - 1;
    }
}

/* Stores the value of a field that decides the framing or names the request. */
static void keep_field(struct framing *f) {
    const bool cut = f->n_value > FRAMING_KEPT_VALUE;
    f->value[cut ? 0 : f->n_value] = '\0';
    if (is_named(f, "host")) f->n_hosts++;
    if (is_named(f, "x-request-id") && f->n_value <= FRAMING_ID_MAX)
        memcpy(f->id, f->value, f->n_value + 1);
    if (is_named(f, "content-encoding")) f->encoded |= cut || !is_identity(f->value);
    if (is_named(f, "content-length")) {
        if (f->has_length) malformed(f, "Content-Length is repeated");
        else if (!is_number(f->value)) malformed(f, "Content-Length is not a number");
        else memcpy(f->length, f->value, f->n_value + 1);
        f->has_length = true;
    }
    if (is_named(f, "transfer-encoding")) {
        if (f->has_coding) malformed(f, "Transfer-Encoding is repeated");
        else if (strcasecmp(f->value, "chunked") != 0)
            malformed(f, "this Transfer-Encoding is not supported");
        f->has_coding = true;
    }
}

static void check_trailer_field(struct framing *f) {
    if (is_named(f, "host") || is_named(f, "content-length") || is_named(f, "transfer-encoding"))
        malformed(f, "this header is not allowed in a trailer");
}

/* Scans a cookie header and counts its cookies.  libmicrohttpd parses cookies even if unasked, and
 * computes a length of -1 for one whose quotes do not end. */
static void in_cookie(struct framing *f, unsigned char c) {
    if (!f->cookie_value) {
        f->cookie_value = c == '=';
    } else if (c == '"') {
        f->cookie_quoted = !f->cookie_quoted;
    } else if (!f->cookie_quoted && (c == ';' || c == ',')) {
        f->cookie_value = false;
    }
    f->n_cookies += c == ';' || c == ',';
    if (++f->n_cookie_bytes > FRAMING_COOKIES_MAX || f->n_cookies > FRAMING_MAX_COOKIES)
        framing_refuse(f, 431, "the request has too many cookies");
}

static void in_value(struct framing *f, unsigned char c) {
    if (c == '\r') {
        f->state = FRAMING_VALUE_LF;
        if (f->is_cookie && f->cookie_quoted) malformed(f, "a cookie is not valid");
        if (f->trailer) check_trailer_field(f);
        else keep_field(f);
        return;
    }
    if (!is_text(c)) {
        malformed(f, "a header value is not valid");
        return;
    }
    if (f->state == FRAMING_VALUE_START && (c == ' ' || c == '\t')) return;
    f->state = FRAMING_VALUE;
    if (f->n_value < FRAMING_KEPT_VALUE) f->value[f->n_value] = (char)c;
    f->n_value++;
    if (f->is_cookie) in_cookie(f, c);
}

/* ---- what follows the head ---- */

static void finish_head(struct framing *f) {
    if (f->n_hosts > 1 || (f->n_hosts == 0 && !f->http_1_0)) {
        malformed(f, "exactly one Host header is required");
    } else if (f->has_coding && f->has_length) {
        malformed(f, "Content-Length and Transfer-Encoding exclude each other");
    } else if (f->has_coding && f->http_1_0) {
        malformed(f, "this Transfer-Encoding is not supported");
    } else if (f->has_coding) {
        f->state = FRAMING_CHUNK_SIZE;
        f->n_line = 0;
    } else {
        for (const char *digit = f->length; *digit; digit++)
            f->left = 10 * f->left + (uint64_t)(*digit - '0');
        f->body = f->left;
        f->state = f->left ? FRAMING_BODY : FRAMING_WHOLE;
        if (f->left > f->max_body) framing_refuse(f, 413, "the request body is too large");
    }
}

static int hex_value(unsigned char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static void in_chunk_line(struct framing *f, unsigned char c) {
    const int digit = f->state == FRAMING_CHUNK_SIZE ? hex_value(c) : -1;
    if (digit >= 0 && f->n_line < CHUNK_DIGITS) {
        f->left = f->n_line ? 16 * f->left + (uint64_t)digit : (uint64_t)digit;
    } else if (c == '\r' && f->n_line) {
        f->state = FRAMING_CHUNK_LF;
        return;
    } else if (f->state == FRAMING_CHUNK_SIZE && c == ';' && f->n_line) {
        f->state = FRAMING_CHUNK_EXTENSION;
    } else if (f->state == FRAMING_CHUNK_SIZE || !is_text(c)) {
        malformed(f, "a chunk's size is not valid");
        return;
    }
    if (++f->n_line > FRAMING_CHUNK_LINE_MAX) malformed(f, "a chunk's size is not valid");
}

static void begin_chunk(struct framing *f) {
    if (f->left > f->max_body - f->body) {
        framing_refuse(f, 413, "the request body is too large");
        return;
    }
    f->body += f->left;
    f->trailer = f->left == 0;
    f->state = f->left ? FRAMING_CHUNK_DATA : FRAMING_FIELD_START;
}

/* ---- the bytes ---- */

/* Scans a line's LF, for which no other byte may stand. */
static void expect_lf(struct framing *f, unsigned char c) {
    if (c != '\n') {
        malformed(f, "a line does not end in CR LF");
        return;
    }
    switch (f->state) {
    case FRAMING_START_LF: f->state = FRAMING_START; break;
    case FRAMING_LINE_LF:
    case FRAMING_VALUE_LF: f->state = FRAMING_FIELD_START; break;
    case FRAMING_END_LF:
        if (f->trailer) f->state = FRAMING_WHOLE;
        else finish_head(f);
        break;
    case FRAMING_CHUNK_LF: begin_chunk(f); break;
    default: /* FRAMING_CHUNK_DATA_LF */ f->state = FRAMING_CHUNK_SIZE; f->n_line = 0;
    }
}

static void scan_byte(struct framing *f, unsigned char c) {
    switch (f->state) {
    case FRAMING_START: at_start(f, c); break;
    case FRAMING_METHOD: in_method(f, c); break;
    case FRAMING_TARGET: in_target(f, c); break;
    case FRAMING_VERSION: in_version(f, c); break;
    case FRAMING_FIELD_START: at_field_start(f, c); break;
    case FRAMING_NAME: in_name(f, c); break;
    case FRAMING_VALUE_START:
    case FRAMING_VALUE: in_value(f, c); break;
    case FRAMING_CHUNK_SIZE:
    case FRAMING_CHUNK_EXTENSION: in_chunk_line(f, c); break;
    case FRAMING_CHUNK_DATA_CR:
        f->state = FRAMING_CHUNK_DATA_LF;
        if (c != '\r') malformed(f, "a chunk does not end where its size says");
        break;
    default: expect_lf(f, c);
    }
}

/* Returns whether the next bytes count towards the head's size. */
static bool in_head(const struct framing *f) {
    return f->state <= FRAMING_END_LF;
}

static size_t scan_data(struct framing *f, size_t length) {
    const size_t n = f->left < length ? (size_t)f->left : length;
    f->left -= n;
    if (f->left == 0) f->state = f->state == FRAMING_BODY ? FRAMING_WHOLE : FRAMING_CHUNK_DATA_CR;
    return n;
}

static size_t white_space(const char *data, size_t length) {
    size_t n = 0;
    while (n < length && (data[n] == ' ' || data[n] == '\t')) n++;
    return n;
}

/* Counts bytes of the head. */
static void count_head(struct framing *f, size_t n) {
    f->n_head += (uint32_t)n;
    if (f->n_head > FRAMING_HEAD_MAX) framing_refuse(f, 431, "the request's headers are too large");
}

/* Moves scanned bytes to where the kept ones end. */
static void keep(char *data, size_t *kept, size_t at, size_t n) {
    if (*kept != at) memmove(data + *kept, data + at, n);
    *kept += n;
}

/* Scans white space inside of a value.  Returns how much of it was scanned: nothing where the data
 * end behind it, as the next part says whether it ends the value.  *drop: it does. */
static size_t scan_space(struct framing *f, const char *data, size_t length, bool *drop) {
    const size_t n = white_space(data, length);
    if (n > FRAMING_WHITE_SPACE_MAX) {
        malformed(f, "a header value has too much white space in one place");
        return 0;
    }
    if (n == length) return 0;
    count_head(f, n);
    *drop = data[n] == '\r';
    for (size_t i = 0; !*drop && i < n && f->state == FRAMING_VALUE; i++)
        in_value(f, (unsigned char)data[i]);
    return n;
}

/* Scans at least one byte if it can, and returns how many it has scanned. */
static size_t scan_some(struct framing *f, const char *data, size_t length, bool *drop) {
    *drop = false;
    if (f->state == FRAMING_BODY || f->state == FRAMING_CHUNK_DATA) return scan_data(f, length);
    if (f->state == FRAMING_VALUE && white_space(data, 1)) return scan_space(f, data, length, drop);
    if (in_head(f)) count_head(f, 1);
    if (f->state != FRAMING_REFUSED) scan_byte(f, (unsigned char)*data);
    return 1;
}

size_t framing_scan(struct framing *f, char *data, size_t length, size_t *kept) {
    size_t at = 0;
    *kept = 0;
    while (at < length && f->state < FRAMING_WHOLE) {
        bool drop;
        const size_t n = scan_some(f, data + at, length - at, &drop);
        if (n == 0) break;
        if (!drop) keep(data, kept, at, n);
        at += n;
    }
    return f->state == FRAMING_REFUSED ? 0 : at;
}
