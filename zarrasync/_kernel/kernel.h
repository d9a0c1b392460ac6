/* The interface of the kernel, one shared library that Python calls through ctypes.
 *
 * Every exported function starts with zarrasync_ and is marked KERNEL_EXPORT. The kernel has no state of its own: it
 * starts no threads, installs no signal handlers, and memory of the caller stays the caller's. */
#ifndef ZARRASYNC_KERNEL_H
#define ZARRASYNC_KERNEL_H

#if !defined(_WIN32) && !defined(__APPLE__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* functions of POSIX, which -std=c11 hides */
#endif

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define KERNEL_EXPORT __declspec(dllexport)
#else
#define KERNEL_EXPORT __attribute__((visibility("default")))
#endif

/* The version of the structs and signatures. Raise it, and ABI in library.py, with each change to one of them. */
#define KERNEL_ABI 1

KERNEL_EXPORT uint32_t zarrasync_kernel_abi(void);

/* Returns the CRC-32C of size bytes, which continues the checksum crc of earlier bytes (0 for none). data may be NULL if
 * size is 0. */
KERNEL_EXPORT uint32_t zarrasync_crc32c(uint32_t crc, const void *data, size_t size);

#endif
