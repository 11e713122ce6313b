/* main.c - main() of the test programs that need no other. */
#include "tests/test.h"

int main(void) {
    return tests_run("tests", NULL, NULL);
}
