/* Parts of the simulator that its .c files share. The public functions are in carracing.h.
 *
 * Box2D's numbers are float32, and gymnasium's are float64. Every expression keeps the order of the original, because
 * each rounding counts: no sum may be regrouped and no product fused with a sum.
 */
#ifndef PHYSICS_H
#define PHYSICS_H

#include "carracing.h"

#define SIZE 0.02 /* units per length unit of gymnasium's car */
#define FRAME_TIME 0.02
#define CELL 8.0 /* width of a grid cell in units */

/* Box2D's constants */
#define TIME_STEP 0.02f
#define LINEAR_SLOP 0.005f
#define PI_FLOAT 3.14159265359f
#define ANGULAR_SLOP (2.0f / 180.0f * PI_FLOAT)

/* Inverse mass and inertia of the hull and of a wheel, and the hull's centre of mass: Box2D's sums over the corners */
#define HULL_MASS 0x1.2215c2p-3f
#define HULL_INERTIA 0x1.c1ce76p-5f
#define HULL_CENTRE_X 0x1.961e78p-30f
#define HULL_CENTRE_Y (-0x1.520be8p-4f)
#define WHEEL_MASS 0x1.088cdcp+4f
#define WHEEL_INERTIA 0x1.0c2010p+7f
#define BOTH_MASS (HULL_MASS + WHEEL_MASS)
#define BOTH_INERTIA (HULL_INERTIA + WHEEL_INERTIA)
#define MOTOR_MASS (1.0f / BOTH_INERTIA)
#define MAX_MOTOR_IMPULSE (TIME_STEP * (float)(180 * 900 * SIZE * SIZE))

enum { NO_LIMIT, LOWER_LIMIT, UPPER_LIMIT };

/* Where the wheels sit, in gymnasium's length units, and relative to the hull's centre of mass */
extern const double WHEEL_PLACE[WHEELS][2];
extern const float ANCHOR[WHEELS][2];

/* A joint's matrix in one frame. (x, y) points from the hull's centre of mass to the wheel. */
typedef struct {
    float x, y;
    float a11, a12, a22, a13, a23; /* its a33 is BOTH_INERTIA */
    float inverse2;                /* 1 / determinant of the upper 2 x 2 matrix */
    float cross_x, cross_y, cross_z, inverse3; /* column 2 x column 3, 1 / determinant */
    float motor_speed;
} JointMatrix;

/* tyres.c: gymnasium's `Car.step`: motor speeds go into the matrices, forces (WHEELS, 2) are for the wheels' bodies. */
void tyres(const Road *road, Car *car, float force[WHEELS][2], JointMatrix matrix[WHEELS]);

/* collide.c: Find the tiles under the wheels and the hull, and count new ones. */
void collide(const Road *road, Car *car);

/* joints.c: the steps of b2Island::Solve */
void begin_velocities(Car *car, const float force[WHEELS][2], JointMatrix matrix[WHEELS]);
void solve_velocities(Car *car, const JointMatrix matrix[WHEELS]);

/* positions.c */
void solve_positions(Car *car);

/* telemetry.c: Forget the excursion of the car before. Its open off-road event is shown until the next frame. */
void rearm_events(Events *events);

/* Return the position of the hull's origin, which gymnasium calls the position of the car. */
static inline void hull_origin(const Body *hull, float origin[2]) {
    origin[0] = hull->x - (hull->cos * HULL_CENTRE_X - hull->sin * HULL_CENTRE_Y);
    origin[1] = hull->y - (hull->sin * HULL_CENTRE_X + hull->cos * HULL_CENTRE_Y);
}

#endif
