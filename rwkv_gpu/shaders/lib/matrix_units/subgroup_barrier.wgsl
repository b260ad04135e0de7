// Lanes of a subgroup wait for each other, and see what each has written to workgroup memory: other subgroups go their own
// way. naga 29 writes a barrier that orders only memory which Vulkan does not have, so that NVIDIA's driver must do more than it
// is asked for, as it did on an H200. Mesa's do not: they may move loads and stores across it.
fn meet() { subgroupBarrier(); }
