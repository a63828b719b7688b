/* The status bar: indicators of speed, wheels, steering and turning rate, and the score. */
#include "picture.h"

#include <math.h>
#include <string.h>

/* pygame takes the integer part of a coordinate. */
static int whole(double value) {
    return value > -1e9 && value < 1e9 ? (int)value : value > 0 ? 1000000000 : -1000000000;
}

enum { BLOCK = 25, LINE_H = 20 }; /* pixels of gymnasium's grid of 40 x 40 */

/* draw.polygon paints both ends. The bar is drawn after the window was mirrored, so y counts downwards in
 * gymnasium. A long indicator rises above the bar, over the world; one of a negative value ends below it. */
static void add_upright(Picture *picture, int place, double value, double scaled, uint32_t color) {
    if (!(fabs(value) > 1e-4)) return;
    int end = whole(WINDOW_H - (LINE_H + LINE_H * scaled)), start = WINDOW_H - LINE_H;
    add_rectangle(picture, place * BLOCK, (place + 1) * BLOCK, WINDOW_H - 1 - most(start, end),
                  WINDOW_H - 1 - least(start, end), color);
}

static void add_level(Picture *picture, int place, double value, double scaled, uint32_t color) {
    if (!(fabs(value) > 1e-4)) return;
    int start = place * BLOCK, end = whole((place + scaled) * BLOCK);
    add_rectangle(picture, least(start, end), most(start, end), 2 * LINE_H - 1, 4 * LINE_H - 1, color);
}

void add_indicators(Picture *picture, const Car *car) {
    const Body *hull = &car->body[0];
    double vx = hull->vx, vy = hull->vy, speed = sqrt(vx * vx + vy * vy);
    add_upright(picture, 5, speed, 0.02 * speed, 0xffffff);
    for (int i = 0; i < WHEELS; i++) {
        double omega = car->wheel[i].omega;
        add_upright(picture, 7 + i, omega, 0.01 * omega, i < 2 ? 0xff0000 : 0xff0033);
    }
    float joint = car->body[1].angle - hull->angle;
    add_level(picture, 20, joint, -10.0 * joint, 0x00ff00);
    add_level(picture, 30, hull->spin, -0.8 * hull->spin, 0x0000ff);
}

/* The score hides the indicators under it. Those of steering and turning reach it from 1.5 rad and 31 rad/s on,
 * which no drive comes near: the joints stop at 0.4 rad. Such a frame would differ from gymnasium's around the
 * digits. */
int paste_score(const Car *car, const uint8_t *scores, int score_count, int lowest_score, uint8_t *frame) {
    double score = rint(car->shown_reward);
    int image = 0; /* "-000" */
    if (score != 0 || !signbit(score)) {
        double index = score - lowest_score + 1;
        if (!(index >= 1 && index < score_count)) return 0;
        image = (int)index;
    } else if (score_count < 1) {
        return 0;
    }
    const uint8_t *pixels = scores + (long)image * SCORE_W * SCORE_W * 3;
    for (int row = 0; row < SCORE_W; row++)
        memcpy(frame + (BAR_TOP + row) * FRAME * 3, pixels + row * SCORE_W * 3, SCORE_W * 3);
    return 1;
}
