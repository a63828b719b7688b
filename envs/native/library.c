/* Sizes of the structs, which the Python side checks against its own layout. */
#include "carracing.h"

long road_size(void) { return (long)sizeof(Road); }

long car_size(void) { return (long)sizeof(Car); }
