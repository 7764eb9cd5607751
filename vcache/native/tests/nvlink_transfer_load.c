/* vcache/native/tests/nvlink_transfer_load.c - a Windows program that loads nvlink_transfer.dll by
 * name.
 *
 * Usage: nvlink_transfer_load.exe DLL. Exit code 0: it loads and says that there is no driver. */
#include <stdio.h>
#include <windows.h>

#include "linkspan/nvlink_transfer.h"

/* Through void*: a cast between the two types of functions is what -Wcast-function-type warns of.
 */
static void* symbol(HMODULE library, const char* name) {
  void* found = (void*)(size_t)GetProcAddress(library, name);
  if (found == NULL) printf("no %s, error %lu\n", name, GetLastError());
  return found;
}

int main(int count, char** arguments) {
  HMODULE library = count == 2 ? LoadLibraryA(arguments[1]) : NULL;
  if (library == NULL) {
    printf("not loaded, error %lu\n", GetLastError());
    return 1;
  }
  typedef const char* (*text_function)(void);
  const text_function version = (text_function)symbol(library, "nvlink_transfer_version");
  const text_function last_error = (text_function)symbol(library, "nvlink_transfer_last_error");
  __typeof__(&perform_direct_transfer) transfer =
      (__typeof__(&perform_direct_transfer))symbol(library, "perform_direct_transfer");
  if (version == NULL || last_error == NULL || transfer == NULL) return 1;
  const int code = transfer(0, 4096, 0, 8192, 1, NULL, 0, NULL, 0, 0, 0, NULL);
  printf("version %s, code %d: %s\n", version(), code, last_error());
  return code == NVLINK_TRANSFER_NO_DRIVER ? 0 : 1;
}
