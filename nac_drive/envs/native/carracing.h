/* CarRacing-v3 in C: the numbers of gymnasium 1.4 with Box2D 2.3.10, bit for bit, and the pixels of pygame-ce 2.5.8.
 *
 * An environment is two plain structs without pointers, owned by the caller: `Road`, which is constant within an episode,
 * and `Car`, which changes with every frame. A copy of `Car` is a saved state. All functions take arrays of
 * environments, allocate nothing, keep nothing, and may run in several threads on different environments.
 *
 * Units: simulator units, radians, seconds. Angles are Box2D's: 0 points to +y, positive to the left.
 */
#ifndef CARRACING_H
#define CARRACING_H

#include <stdint.h>

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

enum {
    BODIES = 5,          /* the hull, then the wheels: front left, front right, rear left, rear right */
    WHEELS = 4,
    MAX_TILES = 512,     /* a track of gymnasium has about 230 to 330 */
    MAX_POLYGONS = 1024, /* a tile and perhaps a kerb each */
    MAX_TOUCHED = 31,    /* tiles under one wheel */
    GRID = 84,           /* cells along each side of the grid that finds the tiles near a body */
    MAX_MEMBERS = 16384,
    FRAME = 96,          /* pixels along each side of the frame from above */
    BAR_TOP = 84,        /* the first row of the status bar */
    SCORE_W = 12,        /* pixels along each side of the image of a score */
};

typedef struct { /* float32, as in Box2D */
    float x, y, angle; /* centre of mass */
    float vx, vy, spin;
    float sin, cos;
} Body;

typedef struct { /* a wheel's motorised joint with limits: the impulses of the last frame */
    float impulse[3], motor;
    float limit; /* 0 none, 1 lower, 2 upper */
    float sleep; /* seconds at rest of the wheel */
} Joint;

typedef struct { /* float64, as in gymnasium's Python */
    double steer, gas, brake, omega, phase;
    int32_t touched; /* number of the tiles it touches */
    uint16_t tiles[MAX_TOUCHED];
    uint8_t skids;   /* its force was above twice the grip in the last frame: gymnasium leaves a trace */
    uint8_t on_road; /* it touched a tile when that force was computed */
} Wheel;

typedef struct { /* detector of off-road events and crashes, see telemetry.py; armed: 0 no, 1 yes, 2 by `car_place` */
    int32_t off_road, off_road_events, crashes, armed, frames_off, frames_on, frames_turned;
} Events;

typedef struct { /* detector of laps, see telemetry.py */
    int32_t index, laps, furthest, finished;
} Lap;

typedef struct {
    Body body[BODIES];
    Joint joint[WHEELS];
    float hull_sleep;
    Wheel wheel[WHEELS];
    uint8_t visited[MAX_TILES]; /* a wheel touched the tile: it paid */
    uint8_t painted[MAX_TILES]; /* hull or wheel touched it: it has the colour of the road */
    double reward, previous_reward; /* the score, gymnasium's `reward`, now and a frame ago */
    double shown_reward;            /* the score in the frame: before the cost of the step */
    double time;
    int32_t visited_count;
    int32_t new_lap;
    int32_t frame;         /* steps since the reset */
    int32_t interventions;
    Events events;
    Lap lap;
    /* Telemetry of the last frame */
    int32_t index;           /* the nearest tile */
    int32_t wheels_off_road;
    int32_t crash;           /* 0 none, 1 outside, 2 off_road, 3 heading */
    int32_t outside;         /* beyond the playfield */
    double speed, lateral_offset, heading_error;
    float position[2]; /* of the hull, Box2D's origin of the body; up to date after every function that moves the car */
} Car;

typedef struct {
    int32_t tiles, polygons;
    double line[MAX_TILES][4];        /* alpha, beta, x, y: gymnasium's `track` */
    double polygon[MAX_POLYGONS][4][2]; /* gymnasium's `road_poly`, in drawing order */
    int16_t tile_of[MAX_POLYGONS];    /* tile of a polygon, -1 of a kerb */
    uint8_t color[MAX_POLYGONS][3];   /* colour before it is touched */
    uint8_t touched_color[3], background[3], grass[3];
    double grip;                      /* friction of the tiles: 1 unless a perturbation changed it */
    double lap_complete_percent;
    float corner[MAX_TILES][4][2];    /* tiles as Box2D holds them */
    int32_t corners[MAX_TILES];
    int32_t cell[GRID * GRID + 1];
    uint16_t member[MAX_MEMBERS];
} Road;

/* road.c */

/* Build a track from 24 random numbers in [0, 1), as gymnasium's `_create_track` does. `colors`: (3, 3) float64 RGB 0-255
 * of the road, the background and the grass. Returns 1; 0 if gymnasium would try again with new numbers; -1 if the track
 * has more tiles than MAX_TILES or more members than MAX_MEMBERS. */
API int road_build(Road *road, const double *random, const double *colors, double lap_complete_percent);

/* physics.c */

/* Begin an episode: a new car at the start, and gymnasium's first frame without an action. */
API void car_begin(const Road *road, Car *car);

/* Replace the car by a new one at rest at a pose. Score, tiles, time and counts stay. The telemetry is still of the last
 * frame; the next one begins without an excursion. */
API void car_place(const Road *road, Car *car, double angle, double x, double y);

/* Advance `count` environments by one frame. `actions`: (count, 3) steer (right positive), gas, brake. Writes rewards
 * (count,) and terminated (count,). `intervene`: after a crash that does not end the episode the car is set on the centre
 * line. `terminate`: a crash ends the episode. */
API void cars_step(const Road *roads, Car *cars, int count, const double *actions, int terminate, int intervene,
                   double *rewards, uint8_t *terminated);

/* telemetry.c */

/* Set pose, speed and wheels off the road of the last frame; count events, laps and crashes if `count_events`. */
void car_telemetry(const Road *road, Car *car, int count_events);

/* picture.c */

/* Bytes of the scratch memory that drawing needs, one per thread, aligned to 64. */
API long picture_scratch_size(void);

/* Draw the frames from above, gymnasium's `state_pixels`. `scores`: (score_count, 12, 12, 3) images of the score: the first
 * is "-000", the next ones are lowest_score, lowest_score + 1, ... `frames`: (count, 96, 96, 3). Returns the number of
 * frames whose score is not in the table; `scoreless` (count,) tells which. */
API int frames_draw(const Road *roads, const Car *cars, int count, void *scratch, const uint8_t *scores, int score_count,
                    int lowest_score, uint8_t *frames, uint8_t *scoreless);

/* Choose the form of the drawing: 0 plain C, 1 the base of the platform (SSE2), 2 AVX2, the best that there is by default.
 * All give the same pixels. Only for tests: no other thread may draw meanwhile. */
API void picture_use(int level);

/* seat.c */

typedef struct {
    int32_t width, height; /* of the frame, the bar included: 32 to 1024 */
    int32_t bar;           /* rows of the speed bar at the bottom: 0 to height / 2 */
} SeatView;

/* Bytes of the scratch memory that drawing needs, one per thread, aligned to 64; -1 for a size out of range. */
API long seat_scratch_size(int width, int height);

/* Draw the frames from the driver's seat: (count, height, width, 3). Returns 0, or -1 for a size out of range. */
API int seat_draw(const Road *roads, const Car *cars, int count, const SeatView *view, void *scratch, uint8_t *frames);

/* library.c: the digest of the sources by build.py, and the sizes of the structs, for the check at import */
API const char *source_digest(void);
API long road_size(void);
API long car_size(void);

#endif
