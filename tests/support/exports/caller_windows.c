/* Calls tilewise.dll as VBA does, for tests: by names, __stdcall, first elements and sizes. */
#include <stdint.h>
#include <stdio.h>
#include <windows.h>

typedef int32_t(__stdcall *product)(const void *, const void *, void *, int32_t, int32_t, int32_t);
typedef int32_t(__stdcall *words)(char *, int32_t);
typedef void(__stdcall *closing)(void);

int main(void)
{
    static float a[40 * 16], b[16 * 24], c[40 * 24];
    char text[512];
    HMODULE library = LoadLibraryA("tilewise.dll");
    product multiply = (product)(void *)GetProcAddress(library, "matmul_cuda");
    words error = (words)(void *)GetProcAddress(library, "matmul_cuda_error");
    closing end = (closing)(void *)GetProcAddress(library, "matmul_cuda_close");
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("matmul_cuda %d\n", (int)multiply(a, b, c, 40, 24, 16));
    int status = multiply(a, b, c, 0, 24, 16);
    error(text, sizeof text);
    printf("matmul_cuda %d %s\n", status, text);
    end();
    return 0;
}
