#include "kernel.h"

uint32_t zarrasync_kernel_abi(void)
{
    return KERNEL_ABI;
}
