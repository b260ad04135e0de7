// Of each row bounds, and what may be kept, for the workgroup that is done last.
@group(0) @binding(6) @coherent var<storage, read_write> list: array<vec2u>;    // [R, 1 + 2 LIST]
