/* gymnasium's `Car.step`: the forces of the tyres, in float64 like Python's numbers. */
#include <math.h>

#include "physics.h"

#define ENGINE_POWER (100000000 * SIZE * SIZE)
#define WHEEL_MOMENT (4000 * SIZE * SIZE)
#define FRICTION_LIMIT (1000000 * SIZE * SIZE)
#define GRASS_LIMIT (FRICTION_LIMIT * 0.6)
#define STIFFNESS (205000 * SIZE * SIZE)
#define WHEEL_RADIUS (1.0 * 27 * SIZE)
#define BRAKE 15 /* radians per second that a full brake takes from a wheel in a frame */
#define BLOCKED 0.9

/* Return the wheel's rotation after engine and brake. */
static double turn_wheel(const Wheel *wheel) {
    double omega = wheel->omega;
    omega += FRAME_TIME * ENGINE_POWER * wheel->gas / WHEEL_MOMENT / (fabs(omega) + 5.0);
    if (wheel->brake >= BLOCKED) return 0;
    if (wheel->brake > 0) {
        double loss = BRAKE * wheel->brake;
        if (loss > fabs(omega)) loss = fabs(omega);
        omega += omega > 0 ? -loss : loss;
    }
    return omega;
}

static float motor_speed(const Wheel *wheel, float angle) {
    double error = wheel->steer - angle;
    double speed = fmin(50.0 * fabs(error), 3.0);
    return (float)(error > 0 ? speed : -speed);
}

void tyres(const Road *road, Car *car, float force[WHEELS][2], JointMatrix matrix[WHEELS]) {
    for (int i = 0; i < WHEELS; i++) {
        Wheel *wheel = &car->wheel[i];
        const Body *body = &car->body[i + 1];
        matrix[i].motor_speed = motor_speed(wheel, body->angle - car->body[0].angle);
        wheel->on_road = wheel->touched > 0;
        double limit = GRASS_LIMIT, on_road = FRICTION_LIMIT * road->grip;
        if (wheel->on_road && on_road > limit) limit = on_road;

        double side_x = body->cos, side_y = body->sin, forward_x = -side_y, forward_y = side_x;
        double forward_speed = forward_x * body->vx + forward_y * body->vy;
        double side_speed = side_x * body->vx + side_y * body->vy;
        double omega = turn_wheel(wheel);
        wheel->phase += omega * FRAME_TIME;
        double along = (-forward_speed + omega * WHEEL_RADIUS) * STIFFNESS, across = -side_speed * STIFFNESS;
        double size = sqrt(along * along + across * across);
        wheel->skids = size > 2.0 * limit;
        if (size > limit) {
            along = along / size * limit;
            across = across / size * limit;
        }
        wheel->omega = omega - FRAME_TIME * along * WHEEL_RADIUS / WHEEL_MOMENT;
        force[i][0] = (float)(across * side_x + along * forward_x);
        force[i][1] = (float)(across * side_y + along * forward_y);
    }
}
