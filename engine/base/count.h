/* count.h - the number of elements of an array whose size the compiler knows.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_COUNT_H
#define ENGINE_BASE_COUNT_H

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
