/* service_links.h - tells the variables that a kubelet sets for a Service from those of a person.
 *
 * Every pod that starts after a Service named `quire` has these variables, unless its
 * enableServiceLinks is false.  QUIRE_PORT is also the variable of --port:
 *
 *   QUIRE_SERVICE_HOST=10.0.0.11            QUIRE_PORT=tcp://10.0.0.11:80
 *   QUIRE_SERVICE_PORT=80                   QUIRE_PORT_80_TCP=tcp://10.0.0.11:80
 *   QUIRE_SERVICE_PORT_HTTP=80              QUIRE_PORT_80_TCP_PROTO=tcp, ..._PORT=80,
 *                                           ..._ADDR=10.0.0.11
 *
 * `docker run --link` sets those of the right column, too.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_SETTINGS_SERVICE_LINKS_H
#define SERVER_SETTINGS_SERVICE_LINKS_H

#include <stdbool.h>

/* Tells whether the value is an address as a kubelet writes it: tcp://, udp:// or sctp://, a host
 * and a port. */
bool service_link_is_address(const char *value);

/* Tells whether "NAME=value" is one of the variables above, for a Service of any name. */
bool service_link_is(const char *variable);

#endif
