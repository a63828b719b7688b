/* A frame of the simulator: gymnasium's `CarRacing.step`. */
#include <math.h>
#include <string.h>

#include "physics.h"

#define PLAYFIELD (2000 / 6.0)

/* In gymnasium's length units */
static const double WHEEL_PLACE[WHEELS][2] = {{-55, 80}, {55, 80}, {-55, -82}, {55, -82}};

/* Set the bodies of a new car. Its wheels are not turned with it: gymnasium's first frame drags them there. */
static void set_bodies(Car *car, double angle, double x, double y) {
    float turn = (float)angle, s = sinf(turn), c = cosf(turn);
    memset(car->body, 0, sizeof(car->body));
    memset(car->joint, 0, sizeof(car->joint));
    memset(car->wheel, 0, sizeof(car->wheel));
    car->hull_sleep = 0;
    for (int i = 0; i < BODIES; i++) {
        Body *body = &car->body[i];
        body->angle = turn;
        body->sin = s;
        body->cos = c;
        if (i == 0) {
            body->x = (c * HULL_CENTRE_X - s * HULL_CENTRE_Y) + (float)x;
            body->y = (s * HULL_CENTRE_X + c * HULL_CENTRE_Y) + (float)y;
        } else {
            body->x = (float)(x + WHEEL_PLACE[i - 1][0] * SIZE);
            body->y = (float)(y + WHEEL_PLACE[i - 1][1] * SIZE);
        }
    }
    car->position[0] = (float)x;
    car->position[1] = (float)y;
}

/* Let the physics of a frame pass. */
static void pass_frame(const Road *road, Car *car) {
    float force[WHEELS][2];
    JointMatrix matrix[WHEELS];
    tyres(road, car, force, matrix);
    collide(road, car);
    begin_velocities(car, force, matrix);
    solve_velocities(car, matrix);
    solve_positions(car);
    car->time += FRAME_TIME;
    car->shown_reward = car->reward;
}

void car_begin(const Road *road, Car *car) {
    const double *start = road->line[0];
    memset(car, 0, sizeof(*car));
    set_bodies(car, start[1], start[2], start[3]);
    car->events.armed = 1;
    pass_frame(road, car);
    car_telemetry(road, car, 0);
}

void car_place(const Road *road, Car *car, double angle, double x, double y) {
    (void)road;
    set_bodies(car, angle, x, y);
    rearm_events(&car->events);
}

/* Set the controls. The gas of the rear wheels rises by 0.1 a frame at most. */
static void control(Car *car, const double action[3]) {
    double gas = fmin(fmax(action[1], 0), 1);
    car->wheel[0].steer = car->wheel[1].steer = -action[0];
    for (int i = 0; i < WHEELS; i++) car->wheel[i].brake = action[2];
    for (int i = 2; i < WHEELS; i++) car->wheel[i].gas += fmin(gas - car->wheel[i].gas, 0.1);
}

/* Pay the frame and look for the end of the episode. Returns whether it is there. */
static int settle(const Road *road, Car *car, int terminate, int intervene, double *reward) {
    car->frame++;
    car->reward -= 0.1;
    *reward = car->reward - car->previous_reward;
    car->previous_reward = car->reward;
    int ends = car->visited_count == road->tiles || car->new_lap;
    car->outside = fabs((double)car->position[0]) > PLAYFIELD || fabs((double)car->position[1]) > PLAYFIELD;
    if (car->outside) {
        ends = 1;
        *reward = -100;
    }
    car_telemetry(road, car, 1);
    if (car->crash && terminate) ends = 1;
    if (car->crash && intervene && !ends) {
        const double *place = road->line[car->index];
        car_place(road, car, place[1], place[2], place[3]);
        car->interventions++;
    }
    return ends;
}

void cars_step(const Road *roads, Car *cars, int count, const double *actions, int terminate, int intervene,
               double *rewards, uint8_t *terminated) {
    for (int i = 0; i < count; i++) {
        control(&cars[i], actions + 3 * i);
        pass_frame(&roads[i], &cars[i]);
        terminated[i] = (uint8_t)settle(&roads[i], &cars[i], terminate, intervene, &rewards[i]);
    }
}
