/* address.c - see address.h. */
#include "server/http/address.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool begins_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* Reads a port with its colon, if there is one.  Returns what follows, or NULL. */
static const char *read_port(uint16_t *port, const char *text) {
    if (*text != ':') return text;
    const size_t n = strspn(++text, "0123456789");
    const long value = strtol(text, NULL, 10);
    if (n == 0 || n > 5 || value < 1 || value > UINT16_MAX) return NULL;
    *port = (uint16_t)value;
    return text + n;
}

bool http_address_read(struct http_address *out, const char *url, uint16_t default_port) {
    *out = (struct http_address){.port = default_port, .with_tls = begins_with(url, "https://")};
    if (!out->with_tls && !begins_with(url, "http://")) return false;
    const char *host = strstr(url, "//") + 2;
    const bool is_v6 = host[0] == '[';
    if (is_v6) host++;
    const size_t n_host = strcspn(host, is_v6 ? "]" : ":/");
    if (is_v6 && !host[n_host]) return false;
    const char *rest = read_port(&out->port, host + n_host + is_v6);
    if (!rest || n_host == 0 || n_host >= ADDRESS_HOST_BYTES || (*rest && *rest != '/') ||
        strlen(rest) >= ADDRESS_PATH_BYTES || strpbrk(url, " \r\n\t"))
        return false;
    memcpy(out->host, host, n_host);
    snprintf(out->authority, sizeof(out->authority), is_v6 ? "[%s]:%u" : "%s:%u", out->host,
             out->port);
    snprintf(out->path, sizeof(out->path), "%s", rest);
    return true;
}
