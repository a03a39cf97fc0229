"""Within one host: shared memory is mapped, other memory is reached by the kernel."""
