/* What this backend chose by measured time.  Other choices add in another order, so a run keeps them in its state
 * (kernels_choices in kernels/device/device.h), and whoever measures asks here first. */
#ifndef VIT_KERNELS_DEVICE_CHOICES_H
#define VIT_KERNELS_DEVICE_CHOICES_H

#include <stddef.h>

/* What was chosen for `what`, a shape in words; NULL: nothing yet. */
const char *choice_of(const char *what);
/* Replaces it.  Neither text may have a line break, and `what` no " = ". */
void choice_set(const char *what, const char *choice);

/* A run of several ranks measures nothing: they would choose differently, and only one of them has a state. */
bool choice_by_time(void);

#endif
