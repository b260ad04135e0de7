// Of each row bounds, and what may be kept.
@group(0) @binding(6) var<storage, read_write> list: array<vec2u>;      // [R, 1 + 2 LIST]
