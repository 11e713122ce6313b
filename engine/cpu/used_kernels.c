/* used_kernels.c - prints which kernels this processor uses.  Meson runs it when it configures a
 * build for this processor alone. */
#include <stdio.h>

#include "engine/cpu/present.h"

int main(void) {
    printf("%s %s\n", used_kernels(), used_int8_kernels());
    return 0;
}
