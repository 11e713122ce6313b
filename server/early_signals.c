/* early_signals.c - see early_signals.h. */
#include "server/early_signals.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

/* A handler has nothing else to tell the program by. */
static volatile sig_atomic_t hung_up;

static void end(int number) {
    (void)number;
    _exit(0);
}

static void note(int number) {
    (void)number;
    hung_up = 1;
}

static void take(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    const bool is_ignored = sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN;
    if (!is_ignored || number == SIGTERM) sigaction(number, &action, NULL);
}

void early_signals_take(void) {
    sigset_t ours;
    take(SIGTERM, end);
    take(SIGINT, end);
    take(SIGHUP, note);
    /* A parent may have blocked them: they would wait for ever. */
    sigemptyset(&ours);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGHUP);
    sigprocmask(SIG_UNBLOCK, &ours, NULL);
}

bool early_signals_hung_up(void) {
    return hung_up;
}
