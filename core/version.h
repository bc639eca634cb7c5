/* The version of all programs, printed by --version; CHANGELOG.md has a heading for each release. */
#ifndef VIT_CORE_VERSION_H
#define VIT_CORE_VERSION_H

#define VIT_VERSION "0.2.0-dev"

#endif
