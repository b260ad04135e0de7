// What blocks have found of a row is joined by another dispatch.
@group(0) @binding(5) var<storage, read_write> parts: array<Part>;      // [R, BLOCKS]
@group(0) @binding(6) var<storage, read_write> list: array<vec2u>;      // [R, 1 + 2 LIST]: bounds, then what may be kept

fn join(_row: u32, _draw: Draw, _lane: u32) {}
