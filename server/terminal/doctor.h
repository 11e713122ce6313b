/* doctor.h - `quire doctor`: what this machine can do, and what is missing.
 *
 * Each check looks at one thing and changes nothing, but for a device that is opened and closed.
 *
 * Thread: main.  Memory: on the stack. */
#ifndef SERVER_TERMINAL_DOCTOR_H
#define SERVER_TERMINAL_DOCTOR_H

#include <stdbool.h>
#include <stdio.h>

struct error;
struct option_table;
struct options;

enum finding_level { FINDING_OK, FINDING_NOTE, FINDING_PROBLEM };

/* What a check has found. */
struct finding {
    enum finding_level level;
    char text[400];
    char remedy[300]; /* what to do; "": nothing */
};

struct doctor_plan {
    bool json;
};

/* What a device that was opened says, or why it cannot be: only main.c knows the devices. */
struct doctor_device {
    int rc; /* of opening it */
    char text[400];
};

struct doctor {
    const struct options *options;
    struct doctor_device cpu, gpu;
    const char
        *lacking_kernels; /* an instruction set that the CPU has and the build has not; or NULL */
    struct doctor_device model; /* the folder that would be served */
    struct doctor_device hub;   /* reading the settings of the hub */
    const char *cache;          /* of the hub; where hub.rc is 0 */
};

const struct option_table *doctor_options(void);
int doctor_plan_read(struct doctor_plan *plan, int *argc, char **argv, struct error *err);
void doctor_print_help(void);
/* Runs all checks and prints what they find.  Returns whether there is no problem. */
bool doctor_run(const struct doctor *doctor, const struct doctor_plan *plan, FILE *out);

struct doctor_check {
    const char *name;
    void (*look)(const struct doctor *doctor, struct finding *out); /* *out is FINDING_OK, empty */
};
/* Returns the checks; one without a name ends them (doctor_checks.c). */
const struct doctor_check *doctor_checks(void);

#endif
