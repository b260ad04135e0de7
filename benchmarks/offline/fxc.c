// Compiles HLSL by FXC, Windows' own compiler: for each line of standard input, the name of a file, a line "OK" and the size
// of what it made, or "REFUSED", then what it said, then a line "== end". It optimises as it does by default, which wgpu leaves
// to it; with the argument "unoptimised" it does not. Built for Windows, run by Wine.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

typedef struct Blob Blob;
struct Blob { struct { void *query, *add; ULONG (WINAPI *release)(Blob *); char *(WINAPI *pointer)(Blob *); SIZE_T (WINAPI *size)(Blob *); } *call; };
typedef HRESULT (WINAPI *Compile)(const void *, SIZE_T, const char *, const void *, void *, const char *, const char *, UINT, UINT, Blob **, Blob **);

enum { UNOPTIMISED = 1 << 2, STRICTNESS = 1 << 11 };  // D3DCOMPILE_SKIP_OPTIMIZATION; _ENABLE_STRICTNESS, which wgpu asks for

int main(int count, char **words) {
    UINT flags = STRICTNESS | (count > 1 && !strcmp(words[1], "unoptimised") ? UNOPTIMISED : 0);
    HMODULE library = LoadLibraryA("d3dcompiler_47.dll");
    Compile compile = library ? (Compile)(void *)GetProcAddress(library, "D3DCompile") : NULL;
    if (!compile) return 3;
    char name[4096];
    while (fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\r\n")] = 0;
        FILE *file = fopen(name, "rb");
        if (!file) return 4;
        fseek(file, 0, SEEK_END);
        long size = ftell(file);
        rewind(file);
        char *text = malloc(size + 1);
        if (fread(text, 1, size, file) != (size_t)size) return 5;
        fclose(file);
        Blob *made = NULL, *said = NULL;
        HRESULT result = compile(text, size, "shader", NULL, NULL, "main", "cs_5_1", flags, 0, &made, &said);
        printf("%s %ld\n", result < 0 ? "REFUSED" : "OK", made ? (long)made->call->size(made) : 0L);
        if (said) printf("%.*s\n", (int)said->call->size(said) - 1, said->call->pointer(said)), said->call->release(said);
        if (made) made->call->release(made);
        printf("== end\n");
        fflush(stdout);
        free(text);
    }
    return 0;
}
