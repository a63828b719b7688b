/* The drawing in plain C, for all processors: the form to read, and the one that the others are tested against. */
#define PICTURE_PLAIN
#define PICTURE_FORM picture_plain
#include "picture_form.h"
