/* The view from the driver's seat: frames.
 *
 * The eye is 2.0 units above the road and 0.6 units before the middle of the hull. It looks 5 degrees down and sees 80
 * degrees from left to right. The speed bar below the view is the only instrument. Tiles keep their colour when the car
 * touches them.
 */
#include <math.h>
#include <string.h>

#include "seat.h"

#define HALF_VIEW 0.83909963f /* tangent of 40 degrees */
#define HORIZON 0.27f         /* its place in the view, as a part of the rows */
#define HILLS (1.2f / 84)     /* their height, as a part of the rows */
#define FULL_SPEED 110.0f     /* fills the bar */

static const Color SKY_TOP = {92, 148, 222, 0}, SKY_LOW = {206, 224, 240, 0}, HILL = {70, 128, 88, 0};

static Camera make_camera(const SeatView *view) {
    Camera camera = {.width = view->width, .rows = view->height - view->bar};
    camera.middle = 0.5f * (float)camera.width;
    camera.focal = camera.middle / HALF_VIEW;
    camera.horizon = HORIZON * (float)camera.rows;
    camera.drop = EYE_HEIGHT * camera.focal / COS_PITCH;
    camera.nearest = camera.drop / ((float)(camera.rows + 1) - camera.horizon);
    camera.row_length = 1 / (camera.drop * COS_PITCH);
    return camera;
}

/* Return a number of the car, or 0 if it is beyond a limit: a state that Python set may hold anything. */
static double sensible(double value, double limit) {
    return fabs(value) <= limit ? value : 0;
}

static Eye make_eye(const Car *car) {
    const Body *hull = &car->body[0];
    float cosine = (float)sensible(hull->cos, 1), sine = (float)sensible(hull->sin, 1);
    Eye eye = {.right_x = cosine, .right_y = sine, .ahead_x = -sine, .ahead_y = cosine};
    eye.x = sensible(car->position[0], 1e6) + EYE_AHEAD * eye.ahead_x;
    eye.y = sensible(car->position[1], 1e6) + EYE_AHEAD * eye.ahead_y;
    eye.patch_x = (float)(eye.x / PATCH - 2 * floor(eye.x / (2 * PATCH)));
    eye.patch_y = (float)(eye.y / PATCH - 2 * floor(eye.y / (2 * PATCH)));
    return eye;
}

/* Return the colours of a road. The numbers change gymnasium's colours to the ones that suit the view. */
static Palette make_palette(const Road *road) {
    Palette palette = {.white = {245, 245, 245, 0}, .red = {225, 20, 20, 0}};
    static const float darker[3] = {-10, -14, -16}, lighter[3] = {10, 10, 2};
    for (int c = 0; c < 3; c++) {
        palette.dark[c] = clamp((float)road->background[c] + darker[c], 0, 255);
        palette.light[c] = clamp((float)road->background[c] + lighter[c], 0, 255);
        palette.tile[c] = clamp((float)road->touched_color[c] + 1.0f, 0, 255);
    }
    palette.meadow = gray_color(0.5f) * (palette.dark + palette.light);
    palette.kerb = gray_color(0.5f) * (palette.white + palette.red);
    return palette;
}

static float overlap(float from, float to, float other_from, float other_to) {
    float low = from > other_from ? from : other_from, high = to < other_to ? to : other_to;
    return high > low ? high - low : 0;
}

/* Return the colour of sky and hills in a row, times the part of the row that they fill. */
static Color sky_color(const Camera *camera, int row) {
    float top = (float)row, bottom = top + 1, crest = camera->horizon - HILLS * (float)camera->rows;
    float part = clamp((top + 0.5f) / camera->horizon, 0, 1);
    Color sky = SKY_TOP + (SKY_LOW - SKY_TOP) * gray_color(part * sqrtf(part));
    return sky * gray_color(overlap(top, bottom, 0, crest)) +
           HILL * gray_color(overlap(top, bottom, crest, camera->horizon));
}

static void draw_bar(const SeatView *view, const Car *car, uint8_t *frame) {
    uint8_t *bar = frame + (size_t)(view->height - view->bar) * (size_t)view->width * 3;
    memset(bar, 0, (size_t)view->bar * (size_t)view->width * 3);
    float vx = car->body[0].vx, vy = car->body[0].vy, margin = (float)(view->width / 24);
    float speed = clamp(sqrtf(vx * vx + vy * vy) / FULL_SPEED, 0, 1);
    float end = margin + ((float)view->width - 2 * margin) * speed;
    for (int row = view->bar / 4; row < view->bar - view->bar / 4; row++) {
        uint8_t *out = bar + (size_t)row * (size_t)view->width * 3;
        for (int x = (int)margin; (float)x < end; x++) {
            write_color(gray_color(255 * overlap((float)x, (float)(x + 1), margin, end)), out + 3 * x);
        }
    }
}

/* Fill a row with one colour. */
static void fill_row(Color color, size_t bytes, uint8_t *out) {
    write_color(color, out);
    for (size_t done = 3; done < bytes; done *= 2) memcpy(out + done, out, done < bytes - done ? done : bytes - done);
}

static void draw_frame(const Road *road, const Car *car, const SeatView *view, const Camera *camera,
                       SeatScratch *scratch, uint8_t *frame) {
    size_t stride = (size_t)view->width * 3;
    Palette palette = make_palette(road);
    Eye eye = make_eye(car);
    memset(scratch->sum, 0, (size_t)(view->width + SPARE) * sizeof(Color));
    seat_outlines(road, &palette, camera, &eye, scratch);
    for (int row = 0; row < camera->rows; row++) {
        uint8_t *out = frame + (size_t)row * stride;
        Color sky = sky_color(camera, row);
        if ((float)(row + 1) > camera->horizon) seat_row(&palette, camera, &eye, scratch, row, sky, out);
        else fill_row(sky, stride, out);
    }
    draw_bar(view, car, frame);
}

static int is_side(int length) {
    return length >= SMALLEST_SIDE && length <= LARGEST_SIDE;
}

long seat_scratch_size(int width, int height) {
    return is_side(width) && is_side(height) ? (long)sizeof(SeatScratch) : -1;
}

int seat_draw(const Road *roads, const Car *cars, int count, const SeatView *view, void *scratch, uint8_t *frames) {
    if (!is_side(view->width) || !is_side(view->height)) return -1;
    if (view->bar < 0 || view->bar > view->height / 2) return -1;
    Camera camera = make_camera(view);
    size_t size = (size_t)view->width * (size_t)view->height * 3;
    for (int i = 0; i < count; i++) {
        draw_frame(&roads[i], &cars[i], view, &camera, scratch, frames + (size_t)i * size);
    }
    return 0;
}
