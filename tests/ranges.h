/* cmocka 1's assert_in_range: version 2 warns of this name and has new ones, which version 1 lacks. */
#ifndef VIT_TESTS_RANGES_H
#define VIT_TESTS_RANGES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Numbers are compared as unsigned: a negative one is above every range. */
#undef assert_in_range
#define assert_in_range(value, least, most)                                                            \
    do {                                                                                               \
        uintmax_t value_ = (uintmax_t)(value), least_ = (uintmax_t)(least), most_ = (uintmax_t)(most); \
        if (value_ < least_ || value_ > most_) fail_msg("%ju is not from %ju to %ju", value_, least_, most_); \
    } while (0)

#endif
