// The function of Windows' bcryptprimitives.dll that Rust's programs take random numbers from; Wine 8 has no such library.
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(void *, ULONG);

__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *data, SIZE_T size) { return SystemFunction036(data, (ULONG)size); }
