/* histogram.c - see histogram.h.
 *
 * Bounds are those that dashboards made for vLLM expect, and a few more: short times for a GPU,
 * long ones for prompts of a million tokens. */
#include "engine/base/histogram.h"

#include <stddef.h>

const struct histogram_bounds histogram_first_token_s = {
    24, {.001, .0025, .005, .01, .02, .04, .06, .08, .1,  .25, .5,  .75,
         1,    2.5,   5,    7.5, 10,  20,  40,  80,  160, 320, 640, 2560}};
const struct histogram_bounds histogram_token_s = {
    25, {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2,  .3,  .4,  .5,
         .75,  1,     2.5,  5,   7.5,  10,  20,   40, 80,  160, 640, 2560}};
const struct histogram_bounds histogram_request_s = {
    26, {.01, .025, .05, .1, .2, .3, .5, .8,  1,   1.5, 2,   2.5,  5,
         10,  15,   20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 2560}};
const struct histogram_bounds histogram_tokens = {
    22, {1,   2,   5,   10,  20,  50,  100, 200, 500, 1e3, 2e3,
         5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7}};
const struct histogram_bounds histogram_step_tokens = {
    13, {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}};
const struct histogram_bounds histogram_choices = {7, {1, 2, 5, 10, 20, 50, 100}};

void histogram_add(struct histogram *histogram, const struct histogram_bounds *bounds,
                   double value) {
    size_t i = 0;
    while (i < bounds->n && value > bounds->upper[i]) i++;
    histogram->buckets[i]++;
    histogram->n++;
    histogram->sum += value;
}
