/* browsers.h - which web pages may use the server through a browser, and under which names.
 *
 * A browser sends what any page asks it to, also to servers that only this machine reaches.  Two
 * things protect them:
 *
 *   Host     localhost and addresses are always answered; names only if they are listed, or if
 *            there is no list and other machines reach the server anyway.  A page whose own name
 *            was made to resolve to this machine (DNS rebinding) is refused.
 *   Origin   a page of another origin is refused unless it is listed; a listed one is told so in
 *            the headers of cross-origin resource sharing (CORS), and may read the answer.
 *
 * Clients that are no browsers send no Origin.
 *
 * Thread: loop.  Memory: none; the rules borrow their texts. */
#ifndef SERVER_API_BROWSERS_H
#define SERVER_API_BROWSERS_H

#include <stdbool.h>

struct api_error;
struct http_exchange;

struct browser_rules {
    const char *origins; /* separated by commas; "*": any; NULL: none but the server's own */
    const char *hosts;   /* names, separated by commas; "*": any; NULL: is_loopback decides */
    bool is_loopback;    /* without hosts: no names */
};

/* Adds the headers that an allowed origin needs; call it before any answer.  Refuses with 403 what
 * these rules do not allow. */
int browsers_check(const struct browser_rules *rules, struct http_exchange *exchange,
                   struct api_error *err);

/* Tells whether a browser asks beforehand what a listed origin may send (a preflight request),
 * after adding the headers of the answer: 204 without a body. */
bool browsers_is_preflight(const struct browser_rules *rules, struct http_exchange *exchange);

#endif
