/* The frame from above: gymnasium's composition of it, see picture.h for how it is drawn. */
#include "picture.h"

#include <math.h>
#include <string.h>

static const double SCALE = 6.0, ZOOM = 2.7, PLAYFIELD = 2000 / 6.0;
static const double SIZE = 0.02; /* of the car's parts */

/* Box2D's corners of the hull and of a tyre, in its order, as multiples of SIZE. */
enum { HULL_PARTS = 4 };
static const struct {
    int count, x[MAX_CORNERS], y[MAX_CORNERS];
} HULL[HULL_PARTS] = {
    {4, {60, 60, -60, -60}, {110, 130, 130, 110}},
    {4, {20, 15, -15, -20}, {20, 120, 120, 20}},
    {8, {50, 50, 25, -25, -50, -50, -20, 20}, {-40, -10, 20, 20, -10, -40, -90, -90}},
    {4, {50, 50, -50, -50}, {-120, -90, -90, -120}},
};
static const int TYRE_X = 14, TYRE_Y = 27;
enum { RED = 0x0000cc, BLACK = 0, GREY = 0x4d4d4d }; /* blue, green, red from the highest byte on */

typedef struct {
    double sin, cos, shift_x, shift_y, zoom;
    double x, y, reach; /* a circle around the visible part of the world */
    int quarter;        /* of a turn, 0 to 3, or -1 */
} View;

/* pygame's Vector2.rotate_rad: float64, but exact within 1e-6 of a quarter turn. */
static void rotate(const View *view, double x, double y, double *to_x, double *to_y) {
    switch (view->quarter) {
    case 0: *to_x = x, *to_y = y; break;
    case 1: *to_x = -y, *to_y = x; break;
    case 2: *to_x = -x, *to_y = -y; break;
    case 3: *to_x = y, *to_y = -x; break;
    default: *to_x = view->cos * x - view->sin * y, *to_y = view->sin * x + view->cos * y;
    }
}

/* The hull stays at (500, 200) of the window. The view opens from a height in the first second. */
static void set_view(View *view, const Car *car) {
    const double turn = 6.283185307179586, quarter = turn / 4, precision = 1e-6;
    double time = car->time, angle = fmod(-(double)car->body[0].angle, turn);
    if (angle < 0) angle += turn;
    view->quarter = -1;
    if (fmod(angle + precision, quarter) < 2 * precision) view->quarter = (int)((angle + precision) / quarter) % 4;
    view->sin = sin(angle);
    view->cos = cos(angle);
    view->zoom = 0.1 * SCALE * (1 - time > 0 ? 1 - time : 0) + ZOOM * SCALE * (time < 1 ? time : 1);
    double x = car->position[0], y = car->position[1];
    rotate(view, -x * view->zoom, -y * view->zoom, &view->shift_x, &view->shift_y);
    view->shift_x += WINDOW_W / 2;
    view->shift_y += WINDOW_H / 4;
    double ahead = 250 / view->zoom; /* the middle of the visible window, (500, 450), lies ahead of the hull */
    view->x = x + view->sin * ahead;
    view->y = y + view->cos * ahead;
    view->reach = 620 / view->zoom;
}

/* Coordinates of the window lose their fraction. gfxdraw takes them as int16. Others far outside stay there. */
static int to_pixel(double value, int is_gfx) {
    const int far = 30000;
    if (!(value > -2e9 && value < 2e9)) return value > 0 ? far : -far;
    return is_gfx ? (int16_t)(int)value : within((int)value, -far, far);
}

static void project(const View *view, const double *points, int count, int is_gfx, Corners *corners) {
    corners->count = count;
    for (int i = 0; i < count; i++) {
        double x, y;
        rotate(view, points[2 * i], points[2 * i + 1], &x, &y);
        corners->x[i] = to_pixel(x * view->zoom + view->shift_x, is_gfx);
        corners->y[i] = to_pixel(y * view->zoom + view->shift_y, is_gfx);
    }
}

static uint32_t pack(const uint8_t *color) {
    return (uint32_t)color[0] | (uint32_t)color[1] << 8 | (uint32_t)color[2] << 16;
}

static int add_ground_quad(Picture *picture, const View *view, const double *points, uint32_t color) {
    Corners corners;
    project(view, points, 4, 1, &corners);
    return add_outlined(picture, &corners, color);
}

/* Add the playfield where its border may be seen. Returns the colour that covers the window otherwise. */
static uint32_t add_field(Picture *picture, const View *view, uint32_t color) {
    const double end = PLAYFIELD, field[8] = {end, end, end, -end, -end, -end, -end, end};
    if (fabs(view->x) + view->reach + 2 < end && fabs(view->y) + view->reach + 2 < end) return color;
    add_ground_quad(picture, view, field, color);
    return BLACK;
}

/* Grass patches lie at every other place of a grid of 40 x 40. */
static void add_grass(Picture *picture, const View *view, uint32_t color) {
    const double side = PLAYFIELD / 20.0;
    int limit[4];
    const double reach = view->reach;
    const double bound[4] = {view->x - reach, view->x + reach, view->y - reach, view->y + reach};
    for (int i = 0; i < 4; i++) {
        double place = floor(bound[i] / side);
        limit[i] = !(place > -22) ? -22 : place > 20 ? 20 : (int)place;
    }
    for (int i = -20; i < 20; i += 2) {
        if (i < limit[0] - 1 || i > limit[1]) continue;
        for (int j = -20; j < 20; j += 2) {
            if (j < limit[2] - 1 || j > limit[3]) continue;
            double x = side * i, y = side * j;
            const double patch[8] = {x + side, y, x, y, x, y + side, x + side, y + side};
            add_ground_quad(picture, view, patch, color);
        }
    }
}

/* Tiles and kerbs. A tile that a wheel or the hull touched has the colour of the road. */
static void add_road(Picture *picture, const View *view, const Road *road, const Car *car) {
    const double longest = 20; /* no polygon of a road is longer */
    double far = (view->reach + longest) * (view->reach + longest);
    uint32_t touched = pack(road->touched_color);
    int before = 0, tile_before = -1;
    for (int i = 0; i < road->polygons; i++) {
        double x = road->polygon[i][0][0] - view->x, y = road->polygon[i][0][1] - view->y;
        if (!(x * x + y * y < far)) continue;
        int tile = road->tile_of[i];
        uint32_t color = tile >= 0 && car->painted[tile] ? touched : pack(road->color[i]);
        int shape = add_ground_quad(picture, view, road->polygon[i][0], color);
        if (tile < 0) continue;
        if (shape && before && tile == tile_before + 1) picture->shape[before].next = shape;
        before = shape;
        tile_before = tile;
    }
}

/* Add a part of a body: corners are transformed in float32, as Box2D does. */
static void add_part(Picture *picture, const View *view, const Body *body, const float *origin, const float *x,
                     const float *y, int count, uint32_t color) {
    double points[2 * MAX_CORNERS];
    for (int i = 0; i < count; i++) {
        points[2 * i] = (body->cos * x[i] - body->sin * y[i]) + origin[0];
        points[2 * i + 1] = (body->sin * x[i] + body->cos * y[i]) + origin[1];
    }
    Corners corners;
    project(view, points, count, 0, &corners);
    add_polygon(picture, &corners, color);
}

/* The white stripe of a tyre turns with it, from 0 to 1.2 radians after its phase, and is hidden on the far side. */
static void add_stripe(Picture *picture, const View *view, const Body *body, const float *origin, double phase) {
    double end = phase + 1.2, sin1 = sin(phase), sin2 = sin(end), cos1 = cos(phase), cos2 = cos(end);
    if (sin1 > 0 && sin2 > 0) return;
    if (sin1 > 0) cos1 = (cos1 > 0) - (cos1 < 0);
    if (sin2 > 0) cos2 = (cos2 > 0) - (cos2 < 0);
    const float side = (float)(TYRE_X * SIZE);
    const float from = (float)(TYRE_Y * cos1 * SIZE), upto = (float)(TYRE_Y * cos2 * SIZE);
    const float x[4] = {-side, side, side, -side}, y[4] = {from, from, upto, upto};
    add_part(picture, view, body, origin, x, y, 4, GREY);
}

static void add_car(Picture *picture, const View *view, const Car *car) {
    const float side = (float)(TYRE_X * SIZE), end = (float)(TYRE_Y * SIZE);
    const float tyre_x[4] = {side, side, -side, -side}, tyre_y[4] = {-end, end, end, -end};
    for (int i = 0; i < WHEELS; i++) {
        const Body *body = &car->body[1 + i];
        const float origin[2] = {body->x, body->y};
        add_part(picture, view, body, origin, tyre_x, tyre_y, 4, BLACK);
        add_stripe(picture, view, body, origin, car->wheel[i].phase);
    }
    for (int i = 0; i < HULL_PARTS; i++) {
        float x[MAX_CORNERS], y[MAX_CORNERS];
        for (int j = 0; j < HULL[i].count; j++) {
            x[j] = (float)(HULL[i].x[j] * SIZE);
            y[j] = (float)(HULL[i].y[j] * SIZE);
        }
        add_part(picture, view, &car->body[0], car->position, x, y, HULL[i].count, RED);
    }
}

/* Sort the shapes from `from` on by the first row of cells that they may touch, at the earliest `row`. */
static void list_beginnings(Picture *picture, int from, int to) {
    for (int i = to - 1; i >= from; i--) {
        int row = row_of[least(picture->shape[i].top + LEAN, WINDOW_H - 1)];
        picture->beside[i] = picture->beginning[row];
        picture->beginning[row] = (int16_t)i;
    }
}

/* Update the shapes that may touch a row of cells: some ended above it, and some begin. They stay in drawing order. */
static void update_active(Picture *picture, int row, int least_shape) {
    int count = 0;
    for (int i = 0; i < picture->active; i++) {
        int16_t index = picture->shape_of[i];
        const Shape *shape = &picture->shape[index];
        if (index >= least_shape && shape->bottom - LEAN <= rows.last[row])
            picture->shape_of[count++] = index;
    }
    for (int16_t index = picture->beginning[row]; index; index = picture->beside[index]) {
        if (index < least_shape) continue;
        int at = count++;
        for (; at && picture->shape_of[at - 1] > index; at--) picture->shape_of[at] = picture->shape_of[at - 1];
        picture->shape_of[at] = index;
    }
    picture->active = count;
}

static void draw_frame(Picture *picture, const Road *road, const Car *car, uint8_t *frame) {
    View view;
    set_view(&view, car);
    picture->shapes = 1;
    picture->spans = 0;
    picture->active = 0;
    memset(picture->beginning, 0, sizeof picture->beginning);
    uint32_t ground = add_field(picture, &view, pack(road->background));
    add_grass(picture, &view, pack(road->grass));
    add_road(picture, &view, road, car);
    add_car(picture, &view, car);
    int indicators = picture->shapes;
    add_indicators(picture, car);
    list_beginnings(picture, 1, picture->shapes);
    for (int row = 0; row < FRAME; row++) {
        int in_bar = row >= BAR_TOP;
        update_active(picture, row, in_bar ? indicators : 1);
        kernels->draw_row(picture, row, in_bar ? BLACK : ground, frame + row * FRAME * 3);
    }
}

long picture_scratch_size(void) {
    return sizeof(Picture);
}

int frames_draw(const Road *roads, const Car *cars, int count, void *scratch, const uint8_t *scores, int score_count,
                int lowest_score, uint8_t *frames, uint8_t *scoreless) {
    int missing = 0;
    for (int i = 0; i < count; i++) {
        uint8_t *frame = frames + (long)i * FRAME * FRAME * 3;
        draw_frame(scratch, &roads[i], &cars[i], frame);
        scoreless[i] = !paste_score(&cars[i], scores, score_count, lowest_score, frame);
        missing += scoreless[i];
    }
    return missing;
}
