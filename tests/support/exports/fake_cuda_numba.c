/* fake_cuda_core.c with what Numba asks of a driver beside. */
#include "fake_cuda_core.c"

CALL cuDeviceGetName(char *name, int length, int device) { return snprintf(name, length, "none"), device; }
CALL cuDeviceGetUuid_v2(void *uuid, int device) { return memset(uuid, 7, 16), device; }
CALL cuMemGetInfo_v2(size_t *unused, size_t *bytes) { return *unused = *bytes = (size_t)1 << 34, 0; }
CALL cuStreamCreate(void **stream, unsigned flags) { return *stream = &contexts, (void)flags, 0; }
CALL cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
    return (void)stream, cuMemcpyHtoD_v2(to, from, bytes);
}
CALL cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
    return (void)stream, cuMemcpyDtoH_v2(to, from, bytes);
}
CALL cuMemsetD8_v2(uint64_t to, unsigned char byte, size_t bytes) { return cuMemsetD8Async(to, byte, bytes, NULL); }
CALL cuPointerGetAttribute(void *found, int attribute, uint64_t address)
{
    return *(uint64_t *)found = address, attribute < 0;
}
CALL cuDevicePrimaryCtxReset_v2(int device) { return device; }
