// What may be kept of each row, for the workgroup that is done last: it has found the bounds, too.
@group(0) @binding(6) @coherent var<storage, read_write> list: array<vec2u>;    // [R, 1 + 2 LIST]

var<private> own_bounds: vec2u;

fn tell_bounds(_row: u32, bounds: vec2u, _leads: bool) { own_bounds = bounds; }

fn bounds_at(_row: u32) -> vec2u { return own_bounds; }
