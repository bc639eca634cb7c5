/* The version of all programs, what --version prints; CHANGELOG.md has a heading for each that was released. */
#ifndef VIT_CORE_VERSION_H
#define VIT_CORE_VERSION_H

#define VIT_VERSION "0.2.0-dev"

#endif
