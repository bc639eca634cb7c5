/* Outlines of objects, which reports draw over pictures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "detection/draw.h"

enum { H = 20, W = 30 };

static bool is_inside(int x, int y) { return x >= 4 && x < 30 && y >= 5 && y < 15 && !(x == 10 && y == 9); }

/* Exactly the pixels of an object with a neighbour outside of the object or the picture become white or coloured, and
 * both colours occur. */
static void outlines_follow_the_edge(void **state) {
    (void)state;
    uint8_t pixels[H * W * 3], inside[H * W];
    const uint8_t white[3] = {255, 255, 255}, red[3] = {200, 0, 0}, grey[3] = {9, 9, 9};
    int whites = 0, reds = 0;
    memset(pixels, 9, sizeof pixels);
    for (int i = 0; i < H * W; i++) inside[i] = is_inside(i % W, i / W);
    draw_outline(&(Image){H, W, pixels}, inside, (DrawColour){{200, 0, 0}});
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
            const uint8_t *pixel = pixels + (y * W + x) * 3;
            bool edge = is_inside(x, y) && !(is_inside(x - 1, y) && is_inside(x + 1, y) && is_inside(x, y - 1) &&
                                             is_inside(x, y + 1));
            whites += !memcmp(pixel, white, 3);
            reds += !memcmp(pixel, red, 3);
            assert_int_equal(!memcmp(pixel, grey, 3), !edge);
        }
    assert_true(whites > 20 && reds > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(outlines_follow_the_edge)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
