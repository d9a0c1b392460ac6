/* CRC-32C: with instructions of the processor where it has them, and otherwise with a table. KERNEL_PORTABLE
 * leaves the instructions out. */
#include "kernel.h"

#include <string.h>

/* The remainders of 0 to 15, times x^4 to x^32, for the reflected polynomial 0x82f63b78. */
static const uint32_t NIBBLES[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

static uint32_t update_portable(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size > 0; data++, size--) {
        crc ^= *data;
        crc = crc >> 4 ^ NIBBLES[crc & 15];
        crc = crc >> 4 ^ NIBBLES[crc & 15];
    }
    return crc;
}

#if defined(__x86_64__) && !defined(KERNEL_PORTABLE)
#include <immintrin.h>

#if defined(__clang__)
#define WITH_CRC __attribute__((target("sse4.2,crc32,pclmul")))
#else
#define WITH_CRC __attribute__((target("sse4.2,pclmul")))
#endif

/* An instruction takes three cycles, and one can start in each: three lanes keep the processor busy. */
enum { LANE = 256 };
#define X_TO_LANE 0xb9e02b86u      /* x^(8 * LANE - 33) modulo the polynomial, reflected */
#define X_TO_TWO_LANES 0xdd7e3b0cu /* x^(16 * LANE - 33) */

static inline uint64_t load(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

/* Returns the checksum after zeros, as many as the power of x stands for. */
WITH_CRC static inline uint64_t append_zeros(uint64_t crc, uint32_t power)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi64_si128((int64_t)power), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

WITH_CRC static uint32_t update_fast(uint32_t start, const uint8_t *data, size_t size)
{
    uint64_t crc = start;
    for (; size >= 3 * LANE; data += 3 * LANE, size -= 3 * LANE) {
        uint64_t second = 0, third = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            crc = _mm_crc32_u64(crc, load(data + i));
            second = _mm_crc32_u64(second, load(data + LANE + i));
            third = _mm_crc32_u64(third, load(data + 2 * LANE + i));
        }
        crc = append_zeros(crc, X_TO_TWO_LANES) ^ append_zeros(second, X_TO_LANE) ^ third;
    }
    for (; size >= 8; data += 8, size -= 8)
        crc = _mm_crc32_u64(crc, load(data));
    for (; size > 0; data++, size--)
        crc = _mm_crc32_u8((uint32_t)crc, *data);
    return (uint32_t)crc;
}

static int has_instructions(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

#elif defined(__aarch64__) && !defined(KERNEL_PORTABLE)
#include <arm_acle.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#if defined(__clang__)
#define WITH_CRC __attribute__((target("crc")))
#else
#define WITH_CRC __attribute__((target("+crc")))
#endif

WITH_CRC static uint32_t update_fast(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        crc = __crc32cd(crc, word);
    }
    for (; size > 0; data++, size--)
        crc = __crc32cb(crc, *data);
    return crc;
}

static int has_instructions(void)
{
#if defined(__APPLE__)
    return 1;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & (1ul << 7)) != 0; /* HWCAP_CRC32 */
#else
    return 0;
#endif
}

#else

#define update_fast update_portable

static int has_instructions(void)
{
    return 0;
}

#endif

uint32_t zarrasync_crc32c(uint32_t crc, const void *data, size_t size)
{
    return ~(has_instructions() ? update_fast : update_portable)(~crc, data, size);
}
