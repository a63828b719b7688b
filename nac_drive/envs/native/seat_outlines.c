/* The view from the driver's seat: tiles and kerbs become outlines in the view. */
#include <math.h>

#include "seat.h"

#define FARTHEST 260.0f  /* the road has faded there */
#define RADIUS 10.0f     /* no corner of a tile or kerb is farther from its middle */

typedef struct {
    float right, depth;
} Seen;

/* Return where a point of the ground lies before the camera. */
static Seen see(const Eye *eye, double x, double y) {
    float dx = (float)(x - eye->x), dy = (float)(y - eye->y);
    float ahead = dx * eye->ahead_x + dy * eye->ahead_y;
    return (Seen){dx * eye->right_x + dy * eye->right_y, ahead * COS_PITCH + EYE_HEIGHT * SIN_PITCH};
}

/* Report whether a polygon may be in the view, by its middle. */
static int may_be_seen(const Camera *camera, const Eye *eye, const double (*polygon)[2]) {
    Seen middle = see(eye, 0.5 * (polygon[0][0] + polygon[2][0]), 0.5 * (polygon[0][1] + polygon[2][1]));
    float half_width = camera->middle / camera->focal; /* of the view, at depth 1 */
    return middle.depth > camera->nearest - RADIUS && middle.depth < FARTHEST + RADIUS &&
           fabsf(middle.right) < middle.depth * half_width + (1 + half_width) * RADIUS;
}

static void add_corner(const Camera *camera, Outline *outline, Seen point) {
    int i = outline->corners++;
    float nearness = 1 / point.depth;
    outline->x[i] = camera->middle + camera->focal * (point.right * nearness);
    outline->y[i] = camera->horizon + camera->drop * nearness;
    outline->top = i == 0 || outline->y[i] < outline->top ? outline->y[i] : outline->top;
    outline->bottom = i == 0 || outline->y[i] > outline->bottom ? outline->y[i] : outline->bottom;
}

/* Project a polygon. What lies nearer than the view shows is cut off. */
static void project(const Camera *camera, const Eye *eye, const double (*polygon)[2], Outline *outline) {
    Seen corner[4];
    outline->corners = 0;
    outline->top = outline->bottom = 0;
    for (int i = 0; i < 4; i++) corner[i] = see(eye, polygon[i][0], polygon[i][1]);
    for (int i = 0; i < 4; i++) {
        Seen here = corner[i], after = corner[(i + 1) % 4];
        if (here.depth >= camera->nearest) add_corner(camera, outline, here);
        if ((here.depth >= camera->nearest) == (after.depth >= camera->nearest)) continue;
        float part = (camera->nearest - here.depth) / (after.depth - here.depth);
        add_corner(camera, outline, (Seen){here.right + part * (after.right - here.right), camera->nearest});
    }
}

/* Return the colour of a polygon near the eye. Gymnasium's greys are spread, so that the driver sees the tiles pass. */
static Color polygon_color(const Road *road, const Palette *palette, int polygon) {
    const uint8_t *color = road->color[polygon];
    Color spread = {0};
    if (road->tile_of[polygon] < 0) return color[1] < 128 ? palette->red : palette->white;
    for (int c = 0; c < 3; c++) {
        float base = road->touched_color[c];
        spread[c] = (float)(int)clamp(base - 7.5f + 3.5f * ((float)color[c] - base), 0, 255);
    }
    return spread;
}

/* Append a polygon's outline, if any of it is in the view. */
static void add_outline(const Road *road, const Palette *palette, const Camera *camera, const Eye *eye,
                        SeatScratch *scratch, int polygon) {
    Outline *outline = &scratch->outline[scratch->outlines];
    project(camera, eye, road->polygon[polygon], outline);
    if (outline->corners < 3 || !(outline->bottom > 0) || !(outline->top < (float)camera->rows)) return;
    outline->kerb = road->tile_of[polygon] < 0;
    outline->color = polygon_color(road, palette, polygon);
    outline->until = outline->top; /* the sides are found in the first subrow */
    scratch->outlines++;
}

/* List the outlines that begin in each row. */
static void sort_by_row(const Camera *camera, SeatScratch *scratch) {
    for (int row = 0; row < camera->rows; row++) scratch->first[row] = -1;
    for (int i = scratch->outlines - 1; i >= 0; i--) {
        Outline *outline = &scratch->outline[i];
        int row = outline->top > 0 ? (int)outline->top : 0;
        outline->next = scratch->first[row];
        scratch->first[row] = i;
    }
}

void seat_outlines(const Road *road, const Palette *palette, const Camera *camera, const Eye *eye,
                   SeatScratch *scratch) {
    scratch->outlines = scratch->active_count = 0;
    for (int kerbs = 1; kerbs >= 0; kerbs--) { /* kerbs lie on the tiles */
        for (int i = road->polygons - 1; i >= 0; i--) {
            if ((road->tile_of[i] < 0) != kerbs || !may_be_seen(camera, eye, road->polygon[i])) continue;
            add_outline(road, palette, camera, eye, scratch, i);
        }
    }
    sort_by_row(camera, scratch);
}
