/* cmocka's assert_in_range, which version 2 calls assert_uint_in_range and warns of by its old name. */
#ifndef VIT_TESTS_RANGES_H
#define VIT_TESTS_RANGES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#ifdef assert_uint_in_range
#undef assert_in_range
#define assert_in_range assert_uint_in_range
#endif

#endif
